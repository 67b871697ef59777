package hydration

import _ "github.com/nearflash/nearflash/pkg/attach/lease" // want `package pkg/attach/hydration may not import github.com/nearflash/nearflash/pkg/attach/lease: the node's loops know nothing of each other`
