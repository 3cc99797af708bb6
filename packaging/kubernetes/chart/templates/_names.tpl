{{- define "keyhole.namespace" -}}
{{ ternary .Values.namespace.name .Release.Namespace .Values.namespace.create }}
{{- end }}

{{- define "keyhole.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The labels by which a part is selected, which is named. */ -}}
{{- define "keyhole.part" -}}
app.kubernetes.io/name: keyhole
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "keyhole.exempt" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: {{ append .Values.admission.exemptNamespaces (include "keyhole.namespace" .) | uniq | toJson }}
{{- end }}

{{- define "keyhole.webhook" -}}
admissionReviewVersions: [v1]
sideEffects: None
failurePolicy: Fail
timeoutSeconds: 10
{{- end }}
