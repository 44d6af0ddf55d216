// The modules of an older release for the sources in otelcol/. Made by generate.sh before.

module verl-otel/otelcol

go 1.25.0

require (
	github.com/open-telemetry/opentelemetry-collector-contrib/connector/spanmetricsconnector v0.152.0
	github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter v0.152.0
	github.com/open-telemetry/opentelemetry-collector-contrib/exporter/loadbalancingexporter v0.152.0
	github.com/open-telemetry/opentelemetry-collector-contrib/exporter/prometheusexporter v0.152.0
	github.com/open-telemetry/opentelemetry-collector-contrib/exporter/prometheusremotewriteexporter v0.152.0
	github.com/open-telemetry/opentelemetry-collector-contrib/extension/bearertokenauthextension v0.152.0
	github.com/open-telemetry/opentelemetry-collector-contrib/extension/healthcheckextension v0.152.0
	github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage v0.152.0
	github.com/open-telemetry/opentelemetry-collector-contrib/processor/filterprocessor v0.152.0
	github.com/open-telemetry/opentelemetry-collector-contrib/processor/tailsamplingprocessor v0.152.0
	github.com/open-telemetry/opentelemetry-collector-contrib/processor/transformprocessor v0.152.0
	github.com/open-telemetry/opentelemetry-collector-contrib/receiver/prometheusreceiver v0.152.0
	go.opentelemetry.io/collector/component v1.61.0
	go.opentelemetry.io/collector/confmap v1.61.0
	go.opentelemetry.io/collector/confmap/provider/envprovider v1.61.0
	go.opentelemetry.io/collector/confmap/provider/fileprovider v1.61.0
	go.opentelemetry.io/collector/confmap/provider/yamlprovider v1.61.0
	go.opentelemetry.io/collector/connector v0.155.0
	go.opentelemetry.io/collector/connector/forwardconnector v0.155.0
	go.opentelemetry.io/collector/exporter v1.61.0
	go.opentelemetry.io/collector/exporter/otlpexporter v0.155.0
	go.opentelemetry.io/collector/exporter/otlphttpexporter v0.155.0
	go.opentelemetry.io/collector/extension v1.61.0
	go.opentelemetry.io/collector/otelcol v0.155.0
	go.opentelemetry.io/collector/processor v1.61.0
	go.opentelemetry.io/collector/processor/memorylimiterprocessor v0.155.0
	go.opentelemetry.io/collector/receiver v1.61.0
	go.opentelemetry.io/collector/receiver/otlpreceiver v0.155.0
	go.opentelemetry.io/collector/service v0.155.0
)

require (
	cloud.google.com/go/auth v0.18.2 // indirect
	cloud.google.com/go/auth/oauth2adapt v0.2.8 // indirect
	cloud.google.com/go/compute/metadata v0.9.0 // indirect
	github.com/Azure/azure-sdk-for-go/sdk/azcore v1.21.0 // indirect
	github.com/Azure/azure-sdk-for-go/sdk/azidentity v1.13.1 // indirect
	github.com/Azure/azure-sdk-for-go/sdk/internal v1.11.2 // indirect
	github.com/AzureAD/microsoft-authentication-library-for-go v1.6.0 // indirect
	github.com/DeRuina/timberjack v1.4.2 // indirect
	github.com/Masterminds/semver/v3 v3.5.0 // indirect
	github.com/alecthomas/participle/v2 v2.1.4 // indirect
	github.com/alecthomas/units v0.0.0-20240927000941-0f3dac36c52b // indirect
	github.com/antchfx/xmlquery v1.5.1 // indirect
	github.com/antchfx/xpath v1.3.6 // indirect
	github.com/aws/aws-sdk-go-v2 v1.41.7 // indirect
	github.com/aws/aws-sdk-go-v2/config v1.32.17 // indirect
	github.com/aws/aws-sdk-go-v2/credentials v1.19.16 // indirect
	github.com/aws/aws-sdk-go-v2/feature/ec2/imds v1.18.23 // indirect
	github.com/aws/aws-sdk-go-v2/internal/configsources v1.4.23 // indirect
	github.com/aws/aws-sdk-go-v2/internal/endpoints/v2 v2.7.23 // indirect
	github.com/aws/aws-sdk-go-v2/internal/v4a v1.4.24 // indirect
	github.com/aws/aws-sdk-go-v2/service/internal/accept-encoding v1.13.9 // indirect
	github.com/aws/aws-sdk-go-v2/service/internal/presigned-url v1.13.23 // indirect
	github.com/aws/aws-sdk-go-v2/service/servicediscovery v1.39.28 // indirect
	github.com/aws/aws-sdk-go-v2/service/signin v1.0.11 // indirect
	github.com/aws/aws-sdk-go-v2/service/sso v1.30.17 // indirect
	github.com/aws/aws-sdk-go-v2/service/ssooidc v1.35.21 // indirect
	github.com/aws/aws-sdk-go-v2/service/sts v1.42.1 // indirect
	github.com/aws/smithy-go v1.25.1 // indirect
	github.com/bahlo/generic-list-go v0.2.0 // indirect
	github.com/bboreham/go-loser v0.0.0-20230920113527-fcc2c21820a3 // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/buger/jsonparser v1.1.2 // indirect
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/coreos/go-systemd/v22 v22.7.0 // indirect
	github.com/davecgh/go-spew v1.1.2-0.20180830191138-d8f796af33cc // indirect
	github.com/dennwc/varint v1.0.0 // indirect
	github.com/edsrzf/mmap-go v1.2.1-0.20241212181136-fad1cd13edbd // indirect
	github.com/elastic/go-grok v0.3.1 // indirect
	github.com/elastic/lunes v0.2.0 // indirect
	github.com/emicklei/go-restful/v3 v3.12.2 // indirect
	github.com/expr-lang/expr v1.17.8 // indirect
	github.com/facette/natsort v0.0.0-20181210072756-2cd4dd1e2dcb // indirect
	github.com/felixge/fgprof v0.9.5 // indirect
	github.com/felixge/httpsnoop v1.0.4 // indirect
	github.com/foxboron/go-tpm-keyfiles v0.0.0-20251226215517-609e4778396f // indirect
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	github.com/fxamacker/cbor/v2 v2.9.0 // indirect
	github.com/go-kit/log v0.2.1 // indirect
	github.com/go-logfmt/logfmt v0.6.0 // indirect
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/go-openapi/analysis v0.24.3 // indirect
	github.com/go-openapi/errors v0.22.7 // indirect
	github.com/go-openapi/jsonpointer v0.22.5 // indirect
	github.com/go-openapi/jsonreference v0.21.5 // indirect
	github.com/go-openapi/loads v0.23.3 // indirect
	github.com/go-openapi/spec v0.22.4 // indirect
	github.com/go-openapi/strfmt v0.26.1 // indirect
	github.com/go-openapi/swag v0.25.5 // indirect
	github.com/go-openapi/swag/cmdutils v0.25.5 // indirect
	github.com/go-openapi/swag/conv v0.25.5 // indirect
	github.com/go-openapi/swag/fileutils v0.25.5 // indirect
	github.com/go-openapi/swag/jsonname v0.25.5 // indirect
	github.com/go-openapi/swag/jsonutils v0.25.5 // indirect
	github.com/go-openapi/swag/loading v0.25.5 // indirect
	github.com/go-openapi/swag/mangling v0.25.5 // indirect
	github.com/go-openapi/swag/netutils v0.25.5 // indirect
	github.com/go-openapi/swag/stringutils v0.25.5 // indirect
	github.com/go-openapi/swag/typeutils v0.25.5 // indirect
	github.com/go-openapi/swag/yamlutils v0.25.5 // indirect
	github.com/go-openapi/validate v0.25.2 // indirect
	github.com/go-viper/mapstructure/v2 v2.5.0 // indirect
	github.com/gobwas/glob v0.2.3 // indirect
	github.com/goccy/go-json v0.10.6 // indirect
	github.com/goccy/go-yaml v1.19.2 // indirect
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/golang-jwt/jwt/v5 v5.3.1 // indirect
	github.com/golang/groupcache v0.0.0-20241129210726-2c02b8208cf8 // indirect
	github.com/golang/snappy v1.0.0 // indirect
	github.com/google/gnostic-models v0.7.0 // indirect
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/google/go-tpm v0.9.8 // indirect
	github.com/google/pprof v0.0.0-20260302011040-a15ffb7f9dcc // indirect
	github.com/google/s2a-go v0.1.9 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/googleapis/enterprise-certificate-proxy v0.3.14 // indirect
	github.com/googleapis/gax-go/v2 v2.18.0 // indirect
	github.com/grafana/regexp v0.0.0-20250905093917-f7b3be9d1853 // indirect
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.28.0 // indirect
	github.com/hashicorp/go-version v1.9.0 // indirect
	github.com/hashicorp/golang-lru v1.0.2 // indirect
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	github.com/iancoleman/strcase v0.3.0 // indirect
	github.com/jonboulle/clockwork v0.5.0 // indirect
	github.com/jpillora/backoff v1.0.0 // indirect
	github.com/json-iterator/go v1.1.12 // indirect
	github.com/julienschmidt/httprouter v1.3.0 // indirect
	github.com/klauspost/compress v1.18.6 // indirect
	github.com/klauspost/cpuid/v2 v2.3.0 // indirect
	github.com/knadh/koanf/maps v0.1.2 // indirect
	github.com/knadh/koanf/providers/confmap v1.0.0 // indirect
	github.com/knadh/koanf/v2 v2.3.5 // indirect
	github.com/kylelemons/godebug v1.1.0 // indirect
	github.com/lightstep/go-expohisto v1.0.0 // indirect
	github.com/mdlayher/socket v0.4.1 // indirect
	github.com/mdlayher/vsock v1.2.1 // indirect
	github.com/mitchellh/copystructure v1.2.0 // indirect
	github.com/mitchellh/reflectwalk v1.0.2 // indirect
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd // indirect
	github.com/modern-go/reflect2 v1.0.3-0.20250322232337-35a7c28c31ee // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/mwitkow/go-conntrack v0.0.0-20190716064945-2f068394615f // indirect
	github.com/oklog/ulid/v2 v2.1.1 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/extension/internal/credentialsfile v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/internal/common v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/internal/coreinternal v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/internal/exp/metrics v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/internal/filter v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/internal/healthcheck v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/internal/pdatautil v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/internal/sharedcomponent v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/pkg/batchpersignal v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/pkg/ottl v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/pkg/pdatautil v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/pkg/resourcetotelemetry v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/pkg/sampling v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/pkg/status v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/pkg/translator/prometheus v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/pkg/translator/prometheusremotewrite v0.152.0 // indirect
	github.com/open-telemetry/opentelemetry-collector-contrib/processor/deltatocumulativeprocessor v0.152.0 // indirect
	github.com/pb33f/jsonpath v0.8.2 // indirect
	github.com/pb33f/libopenapi v0.34.4 // indirect
	github.com/pb33f/ordered-map/v2 v2.3.1 // indirect
	github.com/pierrec/lz4/v4 v4.1.26 // indirect
	github.com/pkg/browser v0.0.0-20240102092130-5ac0b6a4141c // indirect
	github.com/pmezard/go-difflib v1.0.1-0.20181226105442-5d4384ee4fb2 // indirect
	github.com/prometheus/alertmanager v0.31.1 // indirect
	github.com/prometheus/client_golang v1.23.2 // indirect
	github.com/prometheus/client_golang/exp v0.0.0-20260325093428-d8591d0db856 // indirect
	github.com/prometheus/client_model v0.6.2 // indirect
	github.com/prometheus/common v0.67.5 // indirect
	github.com/prometheus/exporter-toolkit v0.16.0 // indirect
	github.com/prometheus/otlptranslator v1.0.0 // indirect
	github.com/prometheus/procfs v0.20.1 // indirect
	github.com/prometheus/prometheus v0.311.4-0.20260507094802-91c184a899b8 // indirect
	github.com/prometheus/sigv4 v0.4.1 // indirect
	github.com/puzpuzpuz/xsync/v4 v4.5.0 // indirect
	github.com/rs/cors v1.11.1 // indirect
	github.com/shirou/gopsutil/v4 v4.26.4 // indirect
	github.com/shurcooL/httpfs v0.0.0-20230704072500-f1e31cf0ba5c // indirect
	github.com/spf13/cobra v1.10.2 // indirect
	github.com/spf13/pflag v1.0.10 // indirect
	github.com/stretchr/testify v1.11.1 // indirect
	github.com/tidwall/gjson v1.10.2 // indirect
	github.com/tidwall/match v1.1.1 // indirect
	github.com/tidwall/pretty v1.2.0 // indirect
	github.com/tidwall/tinylru v1.1.0 // indirect
	github.com/tidwall/wal v1.2.1 // indirect
	github.com/tklauser/go-sysconf v0.3.16 // indirect
	github.com/tklauser/numcpus v0.11.0 // indirect
	github.com/twmb/murmur3 v1.1.8 // indirect
	github.com/ua-parser/uap-go v0.0.0-20251207011819-db9adb27a0b8 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	github.com/zeebo/xxh3 v1.1.0 // indirect
	go.etcd.io/bbolt v1.4.3 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/collector v0.152.0 // indirect
	go.opentelemetry.io/collector/client v1.58.0 // indirect
	go.opentelemetry.io/collector/component/componentstatus v0.152.0 // indirect
	go.opentelemetry.io/collector/component/componenttest v0.155.0 // indirect
	go.opentelemetry.io/collector/config/configauth v1.58.0 // indirect
	go.opentelemetry.io/collector/config/configcompression v1.58.0 // indirect
	go.opentelemetry.io/collector/config/configgrpc v0.152.0 // indirect
	go.opentelemetry.io/collector/config/confighttp v0.152.0 // indirect
	go.opentelemetry.io/collector/config/configmiddleware v1.58.0 // indirect
	go.opentelemetry.io/collector/config/confignet v1.58.0 // indirect
	go.opentelemetry.io/collector/config/configopaque v1.58.0 // indirect
	go.opentelemetry.io/collector/config/configoptional v1.58.0 // indirect
	go.opentelemetry.io/collector/config/configretry v1.58.0 // indirect
	go.opentelemetry.io/collector/config/configtelemetry v0.152.0 // indirect
	go.opentelemetry.io/collector/config/configtls v1.58.0 // indirect
	go.opentelemetry.io/collector/confmap/xconfmap v0.152.0 // indirect
	go.opentelemetry.io/collector/connector/connectortest v0.155.0 // indirect
	go.opentelemetry.io/collector/connector/xconnector v0.155.0 // indirect
	go.opentelemetry.io/collector/consumer v1.61.0 // indirect
	go.opentelemetry.io/collector/consumer/consumererror v0.152.0 // indirect
	go.opentelemetry.io/collector/consumer/consumererror/xconsumererror v0.152.0 // indirect
	go.opentelemetry.io/collector/consumer/consumertest v0.155.0 // indirect
	go.opentelemetry.io/collector/consumer/xconsumer v0.155.0 // indirect
	go.opentelemetry.io/collector/exporter/exporterhelper v0.152.0 // indirect
	go.opentelemetry.io/collector/exporter/exporterhelper/xexporterhelper v0.152.0 // indirect
	go.opentelemetry.io/collector/exporter/exportertest v0.152.0 // indirect
	go.opentelemetry.io/collector/exporter/xexporter v0.152.0 // indirect
	go.opentelemetry.io/collector/extension/extensionauth v1.58.0 // indirect
	go.opentelemetry.io/collector/extension/extensioncapabilities v0.152.0 // indirect
	go.opentelemetry.io/collector/extension/extensionmiddleware v0.152.0 // indirect
	go.opentelemetry.io/collector/extension/extensiontest v0.152.0 // indirect
	go.opentelemetry.io/collector/extension/xextension v0.152.0 // indirect
	go.opentelemetry.io/collector/featuregate v1.61.0 // indirect
	go.opentelemetry.io/collector/internal/componentalias v0.155.0 // indirect
	go.opentelemetry.io/collector/internal/fanoutconsumer v0.155.0 // indirect
	go.opentelemetry.io/collector/internal/memorylimiter v0.152.0 // indirect
	go.opentelemetry.io/collector/internal/sharedcomponent v0.152.0 // indirect
	go.opentelemetry.io/collector/internal/telemetry v0.152.0 // indirect
	go.opentelemetry.io/collector/pdata v1.61.0 // indirect
	go.opentelemetry.io/collector/pdata/pprofile v0.155.0 // indirect
	go.opentelemetry.io/collector/pdata/testdata v0.152.0 // indirect
	go.opentelemetry.io/collector/pdata/xpdata v0.152.0 // indirect
	go.opentelemetry.io/collector/pipeline v1.61.0 // indirect
	go.opentelemetry.io/collector/pipeline/xpipeline v0.155.0 // indirect
	go.opentelemetry.io/collector/processor/processorhelper v0.152.0 // indirect
	go.opentelemetry.io/collector/processor/processorhelper/xprocessorhelper v0.152.0 // indirect
	go.opentelemetry.io/collector/processor/processortest v0.152.0 // indirect
	go.opentelemetry.io/collector/processor/xprocessor v0.152.0 // indirect
	go.opentelemetry.io/collector/receiver/receiverhelper v0.152.0 // indirect
	go.opentelemetry.io/collector/receiver/receivertest v0.152.0 // indirect
	go.opentelemetry.io/collector/receiver/xreceiver v0.152.0 // indirect
	go.opentelemetry.io/collector/service/hostcapabilities v0.152.0 // indirect
	go.opentelemetry.io/contrib/bridges/otelzap v0.18.0 // indirect
	go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc v0.68.0 // indirect
	go.opentelemetry.io/contrib/instrumentation/net/http/httptrace/otelhttptrace v0.67.0 // indirect
	go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp v0.68.0 // indirect
	go.opentelemetry.io/contrib/otelconf v0.23.0 // indirect
	go.opentelemetry.io/contrib/propagators/b3 v1.43.0 // indirect
	go.opentelemetry.io/otel v1.44.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploggrpc v0.19.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp v0.19.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc v1.43.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp v1.43.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlptrace v1.43.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc v1.43.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp v1.43.0 // indirect
	go.opentelemetry.io/otel/exporters/prometheus v0.65.0 // indirect
	go.opentelemetry.io/otel/exporters/stdout/stdoutlog v0.19.0 // indirect
	go.opentelemetry.io/otel/exporters/stdout/stdoutmetric v1.43.0 // indirect
	go.opentelemetry.io/otel/exporters/stdout/stdouttrace v1.43.0 // indirect
	go.opentelemetry.io/otel/log v0.19.0 // indirect
	go.opentelemetry.io/otel/metric v1.44.0 // indirect
	go.opentelemetry.io/otel/sdk v1.44.0 // indirect
	go.opentelemetry.io/otel/sdk/log v0.19.0 // indirect
	go.opentelemetry.io/otel/sdk/metric v1.44.0 // indirect
	go.opentelemetry.io/otel/trace v1.44.0 // indirect
	go.opentelemetry.io/proto/otlp v1.10.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.uber.org/zap v1.28.0 // indirect
	go.uber.org/zap/exp v0.3.0 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
	go.yaml.in/yaml/v3 v3.0.4 // indirect
	go.yaml.in/yaml/v4 v4.0.0-rc.4 // indirect
	golang.org/x/crypto v0.50.0 // indirect
	golang.org/x/exp v0.0.0-20260312153236-7ab1446f8b90 // indirect
	golang.org/x/net v0.53.0 // indirect
	golang.org/x/oauth2 v0.36.0 // indirect
	golang.org/x/sync v0.20.0 // indirect
	golang.org/x/sys v0.45.0 // indirect
	golang.org/x/term v0.42.0 // indirect
	golang.org/x/text v0.36.0 // indirect
	golang.org/x/time v0.15.0 // indirect
	gonum.org/v1/gonum v0.17.0 // indirect
	google.golang.org/api v0.272.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260406210006-6f92a3bedf2d // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260406210006-6f92a3bedf2d // indirect
	google.golang.org/grpc v1.81.0 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
	gopkg.in/evanphx/json-patch.v4 v4.13.0 // indirect
	gopkg.in/inf.v0 v0.9.1 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
	k8s.io/api v0.35.4 // indirect
	k8s.io/apimachinery v0.35.4 // indirect
	k8s.io/client-go v0.35.4 // indirect
	k8s.io/klog/v2 v2.140.0 // indirect
	k8s.io/kube-openapi v0.0.0-20250910181357-589584f1c912 // indirect
	k8s.io/utils v0.0.0-20251002143259-bc988d571ff4 // indirect
	sigs.k8s.io/controller-runtime v0.23.3 // indirect
	sigs.k8s.io/json v0.0.0-20250730193827-2d320260d730 // indirect
	sigs.k8s.io/randfill v1.0.0 // indirect
	sigs.k8s.io/structured-merge-diff/v6 v6.3.2-0.20260122202528-d9cc6641c482 // indirect
	sigs.k8s.io/yaml v1.6.0 // indirect
)

replace go.opentelemetry.io/collector => go.opentelemetry.io/collector v0.152.0

replace go.opentelemetry.io/collector/client => go.opentelemetry.io/collector/client v1.58.0

replace go.opentelemetry.io/collector/component => go.opentelemetry.io/collector/component v1.58.0

replace go.opentelemetry.io/collector/component/componentstatus => go.opentelemetry.io/collector/component/componentstatus v0.152.0

replace go.opentelemetry.io/collector/component/componenttest => go.opentelemetry.io/collector/component/componenttest v0.152.0

replace go.opentelemetry.io/collector/config/configauth => go.opentelemetry.io/collector/config/configauth v1.58.0

replace go.opentelemetry.io/collector/config/configcompression => go.opentelemetry.io/collector/config/configcompression v1.58.0

replace go.opentelemetry.io/collector/config/configgrpc => go.opentelemetry.io/collector/config/configgrpc v0.152.0

replace go.opentelemetry.io/collector/config/confighttp => go.opentelemetry.io/collector/config/confighttp v0.152.0

replace go.opentelemetry.io/collector/config/configmiddleware => go.opentelemetry.io/collector/config/configmiddleware v1.58.0

replace go.opentelemetry.io/collector/config/confignet => go.opentelemetry.io/collector/config/confignet v1.58.0

replace go.opentelemetry.io/collector/config/configopaque => go.opentelemetry.io/collector/config/configopaque v1.58.0

replace go.opentelemetry.io/collector/config/configoptional => go.opentelemetry.io/collector/config/configoptional v1.58.0

replace go.opentelemetry.io/collector/config/configretry => go.opentelemetry.io/collector/config/configretry v1.58.0

replace go.opentelemetry.io/collector/config/configtelemetry => go.opentelemetry.io/collector/config/configtelemetry v0.152.0

replace go.opentelemetry.io/collector/config/configtls => go.opentelemetry.io/collector/config/configtls v1.58.0

replace go.opentelemetry.io/collector/confmap => go.opentelemetry.io/collector/confmap v1.58.0

replace go.opentelemetry.io/collector/confmap/provider/envprovider => go.opentelemetry.io/collector/confmap/provider/envprovider v1.58.0

replace go.opentelemetry.io/collector/confmap/provider/fileprovider => go.opentelemetry.io/collector/confmap/provider/fileprovider v1.58.0

replace go.opentelemetry.io/collector/confmap/provider/yamlprovider => go.opentelemetry.io/collector/confmap/provider/yamlprovider v1.58.0

replace go.opentelemetry.io/collector/confmap/xconfmap => go.opentelemetry.io/collector/confmap/xconfmap v0.152.0

replace go.opentelemetry.io/collector/connector => go.opentelemetry.io/collector/connector v0.152.0

replace go.opentelemetry.io/collector/connector/connectortest => go.opentelemetry.io/collector/connector/connectortest v0.152.0

replace go.opentelemetry.io/collector/connector/xconnector => go.opentelemetry.io/collector/connector/xconnector v0.152.0

replace go.opentelemetry.io/collector/consumer => go.opentelemetry.io/collector/consumer v1.58.0

replace go.opentelemetry.io/collector/consumer/consumererror => go.opentelemetry.io/collector/consumer/consumererror v0.152.0

replace go.opentelemetry.io/collector/consumer/consumererror/xconsumererror => go.opentelemetry.io/collector/consumer/consumererror/xconsumererror v0.152.0

replace go.opentelemetry.io/collector/consumer/consumertest => go.opentelemetry.io/collector/consumer/consumertest v0.152.0

replace go.opentelemetry.io/collector/consumer/xconsumer => go.opentelemetry.io/collector/consumer/xconsumer v0.152.0

replace go.opentelemetry.io/collector/exporter => go.opentelemetry.io/collector/exporter v1.58.0

replace go.opentelemetry.io/collector/exporter/exporterhelper => go.opentelemetry.io/collector/exporter/exporterhelper v0.152.0

replace go.opentelemetry.io/collector/exporter/exporterhelper/xexporterhelper => go.opentelemetry.io/collector/exporter/exporterhelper/xexporterhelper v0.152.0

replace go.opentelemetry.io/collector/exporter/exportertest => go.opentelemetry.io/collector/exporter/exportertest v0.152.0

replace go.opentelemetry.io/collector/exporter/otlpexporter => go.opentelemetry.io/collector/exporter/otlpexporter v0.152.0

replace go.opentelemetry.io/collector/exporter/otlphttpexporter => go.opentelemetry.io/collector/exporter/otlphttpexporter v0.152.0

replace go.opentelemetry.io/collector/exporter/xexporter => go.opentelemetry.io/collector/exporter/xexporter v0.152.0

replace go.opentelemetry.io/collector/extension => go.opentelemetry.io/collector/extension v1.58.0

replace go.opentelemetry.io/collector/extension/extensionauth => go.opentelemetry.io/collector/extension/extensionauth v1.58.0

replace go.opentelemetry.io/collector/extension/extensioncapabilities => go.opentelemetry.io/collector/extension/extensioncapabilities v0.152.0

replace go.opentelemetry.io/collector/extension/extensionmiddleware => go.opentelemetry.io/collector/extension/extensionmiddleware v0.152.0

replace go.opentelemetry.io/collector/extension/extensiontest => go.opentelemetry.io/collector/extension/extensiontest v0.152.0

replace go.opentelemetry.io/collector/extension/xextension => go.opentelemetry.io/collector/extension/xextension v0.152.0

replace go.opentelemetry.io/collector/featuregate => go.opentelemetry.io/collector/featuregate v1.58.0

replace go.opentelemetry.io/collector/internal/componentalias => go.opentelemetry.io/collector/internal/componentalias v0.152.0

replace go.opentelemetry.io/collector/internal/fanoutconsumer => go.opentelemetry.io/collector/internal/fanoutconsumer v0.152.0

replace go.opentelemetry.io/collector/internal/memorylimiter => go.opentelemetry.io/collector/internal/memorylimiter v0.152.0

replace go.opentelemetry.io/collector/internal/sharedcomponent => go.opentelemetry.io/collector/internal/sharedcomponent v0.152.0

replace go.opentelemetry.io/collector/internal/telemetry => go.opentelemetry.io/collector/internal/telemetry v0.152.0

replace go.opentelemetry.io/collector/otelcol => go.opentelemetry.io/collector/otelcol v0.152.0

replace go.opentelemetry.io/collector/pdata => go.opentelemetry.io/collector/pdata v1.58.0

replace go.opentelemetry.io/collector/pdata/pprofile => go.opentelemetry.io/collector/pdata/pprofile v0.152.0

replace go.opentelemetry.io/collector/pdata/testdata => go.opentelemetry.io/collector/pdata/testdata v0.152.0

replace go.opentelemetry.io/collector/pdata/xpdata => go.opentelemetry.io/collector/pdata/xpdata v0.152.0

replace go.opentelemetry.io/collector/pipeline => go.opentelemetry.io/collector/pipeline v1.58.0

replace go.opentelemetry.io/collector/pipeline/xpipeline => go.opentelemetry.io/collector/pipeline/xpipeline v0.152.0

replace go.opentelemetry.io/collector/processor => go.opentelemetry.io/collector/processor v1.58.0

replace go.opentelemetry.io/collector/processor/memorylimiterprocessor => go.opentelemetry.io/collector/processor/memorylimiterprocessor v0.152.0

replace go.opentelemetry.io/collector/processor/processorhelper => go.opentelemetry.io/collector/processor/processorhelper v0.152.0

replace go.opentelemetry.io/collector/processor/processorhelper/xprocessorhelper => go.opentelemetry.io/collector/processor/processorhelper/xprocessorhelper v0.152.0

replace go.opentelemetry.io/collector/processor/processortest => go.opentelemetry.io/collector/processor/processortest v0.152.0

replace go.opentelemetry.io/collector/processor/xprocessor => go.opentelemetry.io/collector/processor/xprocessor v0.152.0

replace go.opentelemetry.io/collector/receiver => go.opentelemetry.io/collector/receiver v1.58.0

replace go.opentelemetry.io/collector/receiver/otlpreceiver => go.opentelemetry.io/collector/receiver/otlpreceiver v0.152.0

replace go.opentelemetry.io/collector/receiver/receiverhelper => go.opentelemetry.io/collector/receiver/receiverhelper v0.152.0

replace go.opentelemetry.io/collector/receiver/receivertest => go.opentelemetry.io/collector/receiver/receivertest v0.152.0

replace go.opentelemetry.io/collector/receiver/xreceiver => go.opentelemetry.io/collector/receiver/xreceiver v0.152.0

replace go.opentelemetry.io/collector/service => go.opentelemetry.io/collector/service v0.152.0

replace go.opentelemetry.io/collector/service/hostcapabilities => go.opentelemetry.io/collector/service/hostcapabilities v0.152.0
