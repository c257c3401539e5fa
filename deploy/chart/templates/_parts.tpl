{{/* The image: [registry/]repository:tag[@digest]. */}}
{{- define "image" -}}
{{- with .Values.image -}}
{{- if .registry }}{{ trimSuffix "/" .registry }}/{{ end }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ if .digest }}@{{ .digest }}{{ end }}
{{- end -}}
{{- end }}

{{/* What a container says of its image, at the indentation of its name. */}}
{{- define "container-image" -}}
image: {{ include "image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* The Pod's credentials for the registry, with their line breaks; nothing where there are none. */}}
{{- define "pull-secrets" -}}
{{- with .Values.image.pullSecrets }}
      imagePullSecrets:
{{- range . }}
        - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The settings file of the daemon: JSON's strings, numbers, booleans and lists are TOML's too. */}}
{{- define "settings" -}}
{{- range $name, $value := .Values.node.settings }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end }}

{{/* Where the nodes report to. */}}
{{- define "aggregator-address" -}}
tensor-fusion-aggregator.{{ .Release.Namespace }}.svc:8003
{{- end }}
