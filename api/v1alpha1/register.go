package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of every nearflash object.
const GroupName = "nearflash.io"

// GroupVersion is the group and version served by this package.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

// SchemeBuilder collects the functions that register this package's types.
var SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

// AddToScheme registers this package's types with a scheme.
var AddToScheme = SchemeBuilder.AddToScheme

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&CachedVolume{}, &CachedVolumeList{},
		&CachePool{}, &CachePoolList{},
		&CacheMigration{}, &CacheMigrationList{},
		&CacheHotSet{}, &CacheHotSetList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
