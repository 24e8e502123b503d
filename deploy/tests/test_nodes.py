"""What runs one model over several hosts: the LeaderWorkerSet, and the job of Slurm."""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

from programs import DEPLOY, llm_options, run

VERSIONS = ["1.28", "1.35"]
# What the resource has to look like, as far as we use it
# (https://lws.sigs.k8s.io/docs/reference/leaderworkerset.v1/).
SET = {
    "type": "object",
    "required": ["leaderWorkerTemplate"],
    "additionalProperties": False,
    "properties": {
        "replicas": {"type": "integer", "minimum": 0},
        "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
        "leaderWorkerTemplate": {
            "type": "object",
            "required": ["size", "workerTemplate"],
            "additionalProperties": False,
            "properties": {
                "size": {"type": "integer", "minimum": 1},
                "restartPolicy": {"enum": ["None", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart"]},
                "leaderTemplate": {"type": "object"},
                "workerTemplate": {"type": "object"},
            },
        },
    },
}


class LeaderWorkerSet(unittest.TestCase):
    def setUp(self):
        text = (DEPLOY / "kubernetes/leaderworkerset.yaml").read_text()
        self.objects = {value["kind"]: value for value in yaml.safe_load_all(text) if value}
        self.template = self.objects["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        [self.worker] = self.template["spec"]["containers"]

    def test_objects_fit_their_schemas(self):
        for kind, value in self.objects.items():
            if kind == "LeaderWorkerSet":
                self.assertEqual(value["apiVersion"], "leaderworkerset.x-k8s.io/v1")
                jsonschema.validate(value["spec"], SET)
                value = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": self.template["spec"]}
            for version in VERSIONS:
                kubernetes_validate.validate(value, version, strict=True)

    def test_options_exist(self):
        environment = [variable["name"] for variable in self.worker["env"]]
        self.assertEqual(len(environment), len(set(environment)), "each once")
        llm_options().check(self, self.worker["args"][1:], environment)

    def test_parts_find_each_other(self):
        labels = self.template["metadata"]["labels"]
        selector = self.objects["Service"]["spec"]["selector"]
        # The operator gives each pod this one.
        self.assertEqual(selector, labels | {"leaderworkerset.sigs.k8s.io/worker-index": "0"})
        policy = self.objects["NetworkPolicy"]["spec"]
        self.assertEqual(policy["podSelector"]["matchLabels"], labels)
        ports = {port["name"]: port["containerPort"] for port in self.worker["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.assertIn(self.worker[probe]["httpGet"]["port"], ports)
        environment = {variable["name"]: variable.get("value") for variable in self.worker["env"]}
        self.assertEqual(int(environment["PORT"]), ports["http"])
        self.assertIn(f"{ports['rendezvous']}", (DEPLOY.parent / "docs/multi-host.md").read_text())
        grace = int(environment["WORKER_SHUTDOWN_GRACE"])
        self.assertGreater(self.template["spec"]["terminationGracePeriodSeconds"], grace)
        [claim] = [v["persistentVolumeClaim"]["claimName"] for v in self.template["spec"]["volumes"] if v["name"] == "storage"]
        self.assertEqual(claim, self.objects["PersistentVolumeClaim"]["metadata"]["name"])


class Slurm(unittest.TestCase):
    JOB = DEPLOY / "slurm/llm-worker.sbatch"

    def test_it_starts_a_process_on_each_host(self):
        run("bash", "-n", str(self.JOB))
        with tempfile.TemporaryDirectory() as folder:
            # Slurm's own programs, as far as the job calls them.
            programs = {
                "scontrol": '[ "$*" = "show hostnames gpu[3-4]" ] && printf "gpu3\\ngpu4\\n"',
                "srun": 'env | grep -E "^(LLM_|PORT|WORKER_|CANDLE_ROCM_TOKEN)"; echo "command: $*"',
            }
            for name, text in programs.items():
                path = Path(folder) / name
                path.write_text(f"#!/bin/sh\n{text}\n")
                path.chmod(0o755)
            environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "gpu[3-4]"}
            said = subprocess.run(["bash", str(self.JOB)], env=environment, capture_output=True, text=True, check=True)
        lines = said.stdout.splitlines()
        told = dict(line.split("=", 1) for line in lines if re.match("[A-Z_]+=", line))
        self.assertEqual(told["LLM_NNODES"], "auto")
        self.assertRegex(told["CANDLE_ROCM_TOKEN"], "^[0-9a-f]{32}$")
        self.assertIn("answers come from http://gpu3:8080", lines)
        self.assertEqual(lines[-1], "command: --kill-on-bad-exit=1 --label llm-worker-rocm serve")
        llm_options().check(self, [], [name for name in told if name in self.JOB.read_text()])


if __name__ == "__main__":
    unittest.main()
