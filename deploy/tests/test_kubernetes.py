"""The chart, and what it makes."""

import subprocess
import tempfile
import unittest

import jsonschema
import kubernetes_validate
import yaml

from programs import DEPLOY, HELM, images_options, llm_options, run

CHART = DEPLOY / "helm/candle-rocm"
PLAIN = DEPLOY / "kubernetes/candle-rocm.yaml"
# The versions whose schemas objects have to fit: the oldest that the chart takes, and a late one.
VERSIONS = ["1.28", "1.35"]
# What the Prometheus operator's resource has to look like, as far as the chart uses it
# (https://prometheus-operator.dev/docs/api-reference/api/#monitoring.coreos.com/v1.PodMonitor).
KEY = {
    "type": "object",
    "required": ["name", "key"],
    "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
}
ENDPOINT = {
    "type": "object",
    "required": ["port", "path", "interval"],
    "additionalProperties": False,
    "properties": {
        "port": {"type": "string"},
        "path": {"type": "string"},
        "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
        "authorization": {"type": "object", "additionalProperties": False, "properties": {"credentials": KEY}},
    },
}
POD_MONITOR = {
    "type": "object",
    "required": ["selector", "podMetricsEndpoints"],
    "additionalProperties": False,
    "properties": {
        "selector": {"type": "object"},
        "podMetricsEndpoints": {"type": "array", "minItems": 1, "items": ENDPOINT},
    },
}
ALL = [
    "images.enabled=true",
    "router.enabled=true",
    "router.image=registry.example/smg:1.13.0",
    "router.args={--prometheus-port=29000}",
    "apiKey.secretName=key",
    "huggingFaceToken.secretName=token",
    "otlpEndpoint=http://collector:4318",
    "llm.modelName=chat",
    "llm.args={--context=8192,--parallel=16}",
    "llm.replicas=3",
    "llm.podLabels.team=a",
    "images.args={--max-side=1024}",
    "storage.storageClassName=fast",
    "image.pullSecrets[0].name=registry",
    "metrics.labels.release=prometheus",
]


def render(*settings, name="demo", namespace="default"):
    with tempfile.TemporaryDirectory() as home:
        homes = {f"HELM_{kind}_HOME": home for kind in ("CACHE", "CONFIG", "DATA")}
        options = [option for setting in settings for option in ("--set", setting)]
        command = [HELM, "template", name, str(CHART), "--namespace", namespace, "--kube-version", "1.34.0", *options]
        return subprocess.run(command, env=homes, capture_output=True, text=True)


def objects(text):
    return [value for value in yaml.safe_load_all(text) if value]


def fits(labels, selector):
    wanted = selector.get("matchLabels", selector)
    for expression in selector.get("matchExpressions", []):
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return all(labels.get(key) == value for key, value in wanted.items() if key != "matchExpressions")


class Chart(unittest.TestCase):
    def setUp(self):
        self.maxDiff = None

    def rendered(self, *settings):
        done = render(*settings)
        self.assertEqual(done.returncode, 0, done.stderr)
        return objects(done.stdout)

    def test_lint(self):
        with tempfile.TemporaryDirectory() as home:
            homes = {f"HELM_{kind}_HOME": home for kind in ("CACHE", "CONFIG", "DATA")}
            run(HELM, "lint", "--strict", str(CHART), env=homes)

    def test_objects_fit_their_schemas(self):
        for settings in ([], ["images.enabled=true", "storage.enabled=false"], ALL):
            for value in self.rendered(*settings):
                if value["kind"] == "PodMonitor":
                    jsonschema.validate(value["spec"], POD_MONITOR)
                    continue
                for version in VERSIONS:
                    kubernetes_validate.validate(value, version, strict=True)

    def test_selectors_find_pods(self):
        made = self.rendered(*ALL)
        of_kind = lambda kind: {value["metadata"]["name"]: value for value in made if value["kind"] == kind}
        pods = {name: value["spec"]["template"] for name, value in of_kind("Deployment").items()}
        self.assertEqual(set(pods), {"demo-llm", "demo-images", "demo-router"})
        for name, service in of_kind("Service").items():
            found = [pod for pod, it in pods.items() if fits(it["metadata"]["labels"], service["spec"]["selector"])]
            self.assertEqual(found, [name])
            ports = [port["name"] for port in pods[name]["spec"]["containers"][0]["ports"]]
            self.assertIn(service["spec"]["ports"][0]["targetPort"], ports)
        [monitor] = of_kind("PodMonitor").values()
        found = {pod for pod, it in pods.items() if fits(it["metadata"]["labels"], monitor["spec"]["selector"])}
        self.assertEqual(found, {"demo-llm", "demo-images"})
        [claim] = of_kind("PersistentVolumeClaim")
        volumes = {v["name"]: v for v in pods["demo-llm"]["spec"]["volumes"]}
        self.assertEqual(volumes["storage"]["persistentVolumeClaim"]["claimName"], claim)

    def test_pods_of_workers(self):
        made = self.rendered(*ALL)
        for component, options in (("llm", llm_options()), ("images", images_options())):
            [deployment] = [v for v in made if v["kind"] == "Deployment" and v["metadata"]["name"] == f"demo-{component}"]
            pod = deployment["spec"]["template"]["spec"]
            [worker] = pod["containers"]
            environment = {variable["name"]: variable for variable in worker["env"]}
            self.assertEqual(len(environment), len(worker["env"]), "each once")
            self.assertEqual(worker["args"][0], "serve")
            options.check(self, worker["args"][1:], environment)
            self.assertEqual(worker["resources"]["limits"]["amd.com/gpu"], 1)
            # The grace of running requests and the hook before it end before the pod is killed.
            hook = int(worker["lifecycle"]["preStop"]["exec"]["command"][1])
            grace = int(environment["WORKER_SHUTDOWN_GRACE"]["value"])
            self.assertGreater(pod["terminationGracePeriodSeconds"], hook + grace)
            # Kernels are kept on a volume.
            mounts = [mount["mountPath"] for mount in worker["volumeMounts"]]
            for folder in ("HF_HOME", "CANDLE_ROCM_CACHE_DIR"):
                self.assertTrue(any(environment[folder]["value"].startswith(mount) for mount in mounts), folder)

    def test_wrong_values_are_refused(self):
        for wrong in [
            "llm.replicas=-1",
            "llm.gpu=2",
            "llm.model=",
            "images.service.type=Internal",
            "storage.size=200",
            "otlpEndpoint=collector",
            "router.policy=best",
            "nothing=1",
        ]:
            done = render(wrong)
            self.assertNotEqual(done.returncode, 0, wrong)
            self.assertIn("values don't meet the specifications of the schema", done.stderr, wrong)
        done = render("router.enabled=true")
        self.assertIn("router.image", done.stderr)

    def test_plain_manifests_are_the_charts(self):
        done = render("images.enabled=true", name="candle-rocm", namespace="candle-rocm")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(objects(PLAIN.read_text()), objects(done.stdout), f"write it anew: {PLAIN} says how")


if __name__ == "__main__":
    unittest.main()
