{{/* Name of every object of the release. The release's own name is enough where it already says what it is. */}}
{{- define "epd.name" -}}
{{- if contains "epd-operator" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-epd-operator" (.Release.Name | trunc 39 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "epd.selector" -}}
app.kubernetes.io/name: epd-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "epd.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: epd
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{ include "epd.selector" . }}
{{- end -}}

{{/* Reference of an image. Arguments: root, name. */}}
{{- define "epd.image" -}}
{{- $images := .root.Values.images -}}
{{- $prefix := empty $images.registry | ternary "" (printf "%s/" $images.registry) -}}
{{- $built := printf "%sepd-%s:%s" $prefix .name ($images.tag | default .root.Chart.AppVersion) -}}
{{- get $images .name | default $built -}}
{{- end -}}

{{/* Rules for each watched namespace: what the operator does with custom resources and their children. */}}
{{- define "epd.rules" -}}
- apiGroups: [serving.epd.dev]
  resources: [deepseekv41deployments]
  verbs: [list, watch]
- apiGroups: [serving.epd.dev]
  resources: [deepseekv41deployments/status]
  verbs: [patch]
# Children block the deletion of their owner: where admission guards that, setting it takes this right.
- apiGroups: [serving.epd.dev]
  resources: [deepseekv41deployments/finalizers]
  verbs: [update]
# Children: get tells a foreign object before the first apply, create and patch are server-side apply.
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [controllerrevisions, deployments]
  verbs: [get, list, watch, create, patch, delete]
# Roles whose engine spans nodes; a rule for an API that the cluster lacks grants nothing.
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings, roles]
  verbs: [get, list, watch, create, patch, delete]
# Also granted onwards to each router's own role, which nobody may grant without holding it.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}
