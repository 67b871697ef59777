package smart

import _ "github.com/nearflash/nearflash/api/v1alpha1" // want `package pkg/smart may not import github.com/nearflash/nearflash/api/v1alpha1: the host has types of its own`
