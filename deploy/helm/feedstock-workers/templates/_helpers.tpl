{{- define "workers.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "workers.account" -}}
{{- default (ternary (include "workers.name" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{/* The name that ranks resolve and that the certificate has. */}}
{{- define "workers.host" -}}
{{- printf "%s.%s.svc.%s" (include "workers.name" .) .Release.Namespace .Values.clusterDomain -}}
{{- end -}}

{{- define "workers.selector" -}}
app.kubernetes.io/name: feedstock-worker
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "workers.labels" -}}
{{ include "workers.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "workers.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- define "workers.limitBytes" -}}
{{- $limit := .Values.memory.limit -}}
{{- if hasSuffix "Gi" $limit -}}
{{- mul (trimSuffix "Gi" $limit | int64) 1073741824 -}}
{{- else -}}
{{- mul (trimSuffix "Mi" $limit | int64) 1048576 -}}
{{- end -}}
{{- end -}}

{{/* --memory-bytes. The rest of the limit is for code, connections and decoders. */}}
{{- define "workers.memoryBytes" -}}
{{- $memory := .Values.memory -}}
{{- $limit := include "workers.limitBytes" . | int64 -}}
{{- $decoders := mul (int64 .Values.threads) (int64 $memory.decoderBytes) -}}
{{- $bytes := int64 $memory.budgetBytes -}}
{{- if eq $bytes 0 -}}
{{- $bytes = sub (div (mul $limit 3) 4) $decoders -}}
{{- end -}}
{{- if lt $bytes 134217728 -}}
{{- fail (printf "memory.limit %s leaves %d bytes for --memory-bytes, less than 128 MiB: %d threads need %d bytes for decoding; raise memory.limit or lower threads" $memory.limit $bytes (int64 .Values.threads) $decoders) -}}
{{- end -}}
{{- if gt (add $bytes $decoders) $limit -}}
{{- fail (printf "memory.budgetBytes %d and %d bytes for decoding are more than memory.limit %s" $bytes $decoders $memory.limit) -}}
{{- end -}}
{{- $bytes -}}
{{- end -}}
