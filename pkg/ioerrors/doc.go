// Package ioerrors has the kernel count the requests that block devices have failed,
// whatever driver they belong to.
//
// Most drivers count no errors. But the kernel has a tracepoint for each bio that ends
// (block_bio_complete in include/trace/events/block.h), with its device and its error. It
// fires for every bio that a device was given by submit_bio, which marks it
// (BIO_TRACE_COMPLETION in block/blk-core.c), in bio_endio (block/bio.c), that is, when
// whatever is below has given up. The exception are disks that take requests: their bios are
// traced as requests (blk_update_request in block/blk-mq.c takes the mark away). So it works
// for devices of the device mapper that are not request-based, above any disk.
//
// An instance of our own in tracefs (Documentation/trace/ftrace.rst, Instances) counts
// there. It belongs to the kernel: it goes on when this process has ended, until the
// machine restarts. Other tracers have instances of their own, and neither sees the other.
// There are two ways to count, and a kernel has one of them, or none:
//
//   - a histogram by device of the bios that failed (Documentation/trace/histogram.rst,
//     CONFIG_HIST_TRIGGERS);
//   - the instance's ring buffer, which keeps the first bios that failed and counts the
//     later ones (CONFIG_EVENT_TRACING). Those have no device any more, and count for each.
//
// The memory of both is bounded. What is not counted are bios that submit_bio itself
// refuses, before it marks them: beyond the end of the device, of a kind that the device
// does not support, or refused by an error injection.
package ioerrors
