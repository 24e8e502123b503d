{{/* The name that all objects begin with. */}}
{{- define "candle-rocm.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels of a component: dict "root" $ "component" NAME. */}}
{{- define "candle-rocm.selector" -}}
app.kubernetes.io/name: candle-rocm
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "candle-rocm.labels" -}}
{{ include "candle-rocm.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "candle-rocm.claim" -}}
{{- default (printf "%s-storage" (include "candle-rocm.name" .)) .Values.storage.existingClaim -}}
{{- end -}}

{{/* A worker's Deployment: dict "root" $ "component" NAME "worker" VALUES "program" NAME "prefix" VARIABLES. */}}
{{- define "candle-rocm.worker" -}}
{{- $values := .root.Values -}}
{{- $name := printf "%s-%s" (include "candle-rocm.name" .root) .component -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels:
    {{- include "candle-rocm.labels" . | nindent 4 }}
spec:
  replicas: {{ .worker.replicas }}
  # A new pod needs GPUs that the old one holds.
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 0
      maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "candle-rocm.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "candle-rocm.labels" . | nindent 8 }}
        {{- with .worker.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .worker.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- with $values.image.pullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      # Time for the preStop hook, running requests and their last answers.
      terminationGracePeriodSeconds: {{ add .worker.shutdownGraceSeconds 30 }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        runAsGroup: 10001
        fsGroup: 10001
        fsGroupChangePolicy: OnRootMismatch
        supplementalGroups:
          {{- toYaml $values.gpuGroups | nindent 10 }}
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: worker
          image: {{ index $values.image .component | quote }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          args:
            - serve
            {{- range .worker.args }}
            - {{ . | quote }}
            {{- end }}
          env:
            - name: {{ .prefix }}_MODEL
              value: {{ .worker.model | quote }}
            {{- with .worker.modelName }}
            - name: LLM_MODEL_REF
              value: {{ . | quote }}
            {{- end }}
            - name: {{ .prefix }}_DEVICE
              value: rocm
            - name: {{ .prefix }}_LOG_FORMAT
              value: json
            - name: WORKER_HOST
              value: "0.0.0.0"
            - name: PORT
              value: "8080"
            - name: WORKER_ID
              valueFrom:
                fieldRef:
                  fieldPath: metadata.name
            - name: WORKER_SHUTDOWN_GRACE
              value: {{ .worker.shutdownGraceSeconds | quote }}
            - name: HF_HOME
              value: /models
            # A folder that the worker makes itself: others may not write there.
            - name: CANDLE_ROCM_CACHE_DIR
              value: /models/kernels
            {{- if $values.apiKey.secretName }}
            - name: LLORCH_API_TOKEN
              valueFrom:
                secretKeyRef:
                  name: {{ $values.apiKey.secretName }}
                  key: {{ $values.apiKey.secretKey }}
            {{- else if $values.allowedHosts }}
            - name: WORKER_ALLOWED_HOST
              value: {{ join "," $values.allowedHosts | quote }}
            {{- end }}
            {{- if $values.huggingFaceToken.secretName }}
            - name: HF_TOKEN
              valueFrom:
                secretKeyRef:
                  name: {{ $values.huggingFaceToken.secretName }}
                  key: {{ $values.huggingFaceToken.secretKey }}
            {{- end }}
            {{- with $values.otlpEndpoint }}
            - name: OTEL_EXPORTER_OTLP_ENDPOINT
              value: {{ . | quote }}
            - name: OTEL_SERVICE_NAME
              value: {{ $name }}
            {{- end }}
            {{- with .worker.env }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - name: http
              containerPort: 8080
          # Downloads, compiles and loads; then probes take over.
          startupProbe:
            httpGet: {path: /ready, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: {{ mul .worker.startMinutes 6 }}
          readinessProbe:
            httpGet: {path: /ready, port: http}
            periodSeconds: 5
            timeoutSeconds: 5
            failureThreshold: 1
          # The worker starts its server anew after a crash; this is for one that does not come back.
          livenessProbe:
            httpGet: {path: /health, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 60
          lifecycle:
            preStop:
              # Until all routers know that this pod gets nothing new.
              exec:
                command: ["sleep", "10"]
          resources:
            requests:
              amd.com/gpu: {{ .worker.gpus }}
              {{- with .worker.resources.requests }}
              {{- toYaml . | nindent 14 }}
              {{- end }}
            limits:
              amd.com/gpu: {{ .worker.gpus }}
              {{- with .worker.resources.limits }}
              {{- toYaml . | nindent 14 }}
              {{- end }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
          volumeMounts:
            - name: storage
              mountPath: /models
            - name: tmp
              mountPath: /tmp
            - name: shm
              mountPath: /dev/shm
      volumes:
        - name: storage
          {{- if $values.storage.enabled }}
          persistentVolumeClaim:
            claimName: {{ include "candle-rocm.claim" .root }}
          {{- else }}
          emptyDir: {}
          {{- end }}
        - name: tmp
          emptyDir: {}
        - name: shm
          emptyDir:
            medium: Memory
            sizeLimit: 1Gi
      {{- with .worker.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .worker.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .worker.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end -}}

{{/* The Service of a component: dict "root" $ "component" NAME "service" VALUES. */}}
{{- define "candle-rocm.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "candle-rocm.name" .root }}-{{ .component }}
  labels:
    {{- include "candle-rocm.labels" . | nindent 4 }}
spec:
  type: {{ .service.type }}
  selector:
    {{- include "candle-rocm.selector" . | nindent 4 }}
  ports:
    - name: http
      port: {{ .service.port }}
      targetPort: http
{{- end -}}
