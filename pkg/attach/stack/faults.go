package stack

import "github.com/nearflash/nearflash/pkg/faultpoint"

var faultReloadLoaded = faultpoint.New("reload.loaded")
