package klog
