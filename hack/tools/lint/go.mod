module github.com/nearflash/nearflash/hack/tools/lint

go 1.26.0

require (
	codeberg.org/polyfloyd/go-errorlint v1.9.0
	github.com/timonwong/loggercheck v0.12.0
	golang.org/x/tools v0.50.0
	honnef.co/go/tools v0.8.1
	sigs.k8s.io/kube-api-linter v0.0.0-20260716143926-092fe0c72997
)

require (
	github.com/BurntSushi/toml v1.5.0 // indirect
	golang.org/x/exp/typeparams v0.0.0-20250911091902-df9299821621 // indirect
	golang.org/x/mod v0.41.0 // indirect
	golang.org/x/sync v0.23.0 // indirect
	k8s.io/apimachinery v0.32.3 // indirect
	k8s.io/gengo/v2 v2.0.0-20250922181213-ec3ebc5fd46b // indirect
	k8s.io/utils v0.0.0-20241104100929-3ea5e8cea738 // indirect
	sigs.k8s.io/yaml v1.4.0 // indirect
)
