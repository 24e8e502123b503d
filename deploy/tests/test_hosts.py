"""Units, images and proxies for hosts without Kubernetes."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from pathlib import Path

import yaml

from programs import DEPLOY, LLM_WORKER, REPOSITORY, SD_WORKER, Program, ask, free_port, images_options, llm_options, run, wait_for

# Of 10: what systemd calls "OK" begins at 5.
MOST_EXPOSED = 2.5


def variables(text):
    """Names of a file of variables, those that are commented out included."""
    return re.findall(r"^#?([A-Z][A-Z0-9_]*)=", text, re.MULTILINE)


class Units(unittest.TestCase):
    UNITS = {"llm-worker-rocm": (LLM_WORKER, llm_options), "sd-worker-rocm": (SD_WORKER, images_options)}

    def test_systemd_takes_them(self):
        for name, (program, _) in self.UNITS.items():
            with tempfile.TemporaryDirectory() as folder:
                unit = Path(folder) / f"{name}.service"
                text = (DEPLOY / f"systemd/{name}.service").read_text()
                unit.write_text(text.replace(f"/usr/local/bin/{name}", program))
                said = run("systemd-analyze", "verify", "--man=no", str(unit))
                self.assertEqual(said, "", "no remark")
                said = run("systemd-analyze", "security", "--offline=true", "--no-pager", str(unit))
                exposed = float(re.search(r"exposure level for \S+ ([0-9.]+)", said)[1])
                self.assertLessEqual(exposed, MOST_EXPOSED, said)

    def test_options_exist(self):
        for name, (_, options) in self.UNITS.items():
            unit = (DEPLOY / f"systemd/{name}.service").read_text()
            [command] = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
            own = re.findall(r"^Environment=([A-Z_]+)=", unit, re.MULTILINE)
            file = DEPLOY / f"systemd/{name}.env"
            self.assertIn(f"EnvironmentFile=/etc/candle-rocm/{file.name}\n", unit)
            options().check(self, shlex.split(command), own + variables(file.read_text()))
            grace = int(re.search(r"WORKER_SHUTDOWN_GRACE=(\d+)", unit)[1])
            self.assertGreater(int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]), grace)

    def test_the_worker_tells_systemd(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            path = f"{folder}/notify"
            manager.bind(path)
            manager.settimeout(120)
            worker = Program.images(env=os.environ | {"NOTIFY_SOCKET": path})
            told = []
            while not told or "READY=1" not in told[-1]:
                told.append(manager.recv(4096).decode().split("\n"))
            self.assertIn("EXTEND_TIMEOUT_USEC=60000000", told[0])
            self.assertTrue(any(line.startswith("STATUS=loading, ") for line in told[0]), told[0])
            self.assertTrue(any(line.startswith("STATUS=serving ") for line in told[-1]), told[-1])
            self.assertEqual(worker.ask("/ready")[0], 200, "before it says so")
            worker.stop()
            self.assertIn("STOPPING=1", manager.recv(4096).decode().split("\n"))


class Images(unittest.TestCase):
    DOCKERFILE = DEPLOY / "docker/Dockerfile"

    def test_hadolint(self):
        run(str(Path(sys.executable).parent / "hadolint"), str(self.DOCKERFILE))

    def test_a_build_gets_the_whole_workspace(self):
        kept = set(re.findall(r"^!([^\s/]+)$", (DEPLOY / "docker/Dockerfile.dockerignore").read_text(), re.MULTILINE))
        workspace = (REPOSITORY / "Cargo.toml").read_text()
        members = re.findall(r'"([^"]+)"', re.search(r"members = \[(.*?)\]", workspace, re.DOTALL)[1])
        self.assertGreater(len(members), 10)
        self.assertEqual({member.split("/")[0] for member in members} - kept, set())
        self.assertLessEqual({"Cargo.toml", "Cargo.lock"}, kept)
        for name in kept - {"LICENSE-*"}:
            self.assertTrue((REPOSITORY / name).exists(), name)

    def test_compose(self):
        text = self.DOCKERFILE.read_text()
        stages = re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE)
        set_up = re.findall(r"^(?:ENV | {4})([A-Z_]+)=", text, re.MULTILINE)
        compose = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())
        for service, options in (("llm", llm_options()), ("images", images_options())):
            about = compose["services"][service]
            build = about["build"]
            self.assertEqual((DEPLOY / "docker" / build["context"]).resolve(), REPOSITORY)
            self.assertTrue((REPOSITORY / build["dockerfile"]).is_file())
            self.assertIn(build["target"], stages)
            options.check(self, about.get("command", []), list(about["environment"]) + set_up)
            self.assertEqual(about["devices"], ["/dev/kfd", "/dev/dri"])
            named = {volume.split(":")[0] for volume in about["volumes"]}
            self.assertLessEqual(named, set(compose["volumes"]))


class Proxy:
    """HAProxy with one of our files, in front of workers."""

    def __init__(self, file, **environment):
        self.port = free_port()
        config = str(DEPLOY / "haproxy" / file)
        environment[f"{file.split('.')[0].upper()}_PORT"] = str(self.port)
        options = {"env": os.environ | environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(["haproxy", "-db", "-f", config], **options)
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self):
        self.process.terminate()
        self.process.wait(10)


class Proxies(unittest.TestCase):
    PICTURE = {"prompt": "a green square", "steps": 1, "width": 64, "height": 64}

    def test_haproxy_takes_its_files(self):
        names = {name: "127.0.0.1:9" for name in ("LLM_1", "LLM_2", "IMAGES_1", "IMAGES_2")}
        files = [str(DEPLOY / "haproxy" / file) for file in ("llm.cfg", "images.cfg")]
        for options in (files[:1], files[1:], files):
            said = run("haproxy", "-c", *[part for file in options for part in ("-f", file)], env=os.environ | names)
            self.assertNotRegex(said, "WARNING|ALERT")

    def nginx(self, folder, worker):
        """Our site for this worker as the only one: options of nginx, and its address."""
        port = free_port()
        site = (DEPLOY / "nginx/llm-worker.conf").read_text()
        site = site.replace("listen [::]:80;", "").replace("listen 80;", f"listen 127.0.0.1:{port};")
        site = site.replace("server 127.0.0.1:8080;", f"server {worker};")
        config = Path(folder) / "nginx.conf"
        config.write_text(f"pid {folder}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{site}}}\n")
        return ["nginx", "-p", folder, "-c", str(config)], f"http://127.0.0.1:{port}"

    def test_nginx_takes_its_file(self):
        with tempfile.TemporaryDirectory() as folder:
            options, _ = self.nginx(folder, "127.0.0.1:8080")
            run(*options, "-t")

    def share_of_frames(self, proxy):
        """The share of an answer's time between its first frame and its last, of fewer bytes than proxies' buffers have."""
        body = {"prompt": "Once upon a time", "max_tokens": 80, "ignore_eos": True, "stream": True}
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        began, times = time.monotonic(), []
        with urllib.request.urlopen(urllib.request.Request(proxy + "/v1/completions", data, headers)) as answer:
            self.assertTrue(answer.headers["X-Request-Id"])
            for line in answer:
                if line.startswith(b"data: "):
                    last = line.strip()
                    times.append(time.monotonic())
        self.assertEqual(last, b"data: [DONE]")
        self.assertGreater(len(times), 60)
        return (times[-1] - times[0]) / (times[-1] - began)

    def test_streams_of_a_language_worker(self):
        worker, folder = Program.llm(), tempfile.TemporaryDirectory()
        address = worker.ready().url.removeprefix("http://")
        haproxy = Proxy("llm.cfg", LLM_1=address, LLM_2=address)
        options, url = self.nginx(folder.name, address)
        nginx = subprocess.Popen([*options, "-g", "daemon off;"], stderr=subprocess.DEVNULL)
        try:
            for proxy in (haproxy.url, url):
                wait_for("the proxy", lambda: ask(proxy + "/ready")[0] == 200)
                # A busy machine may wake us late, a proxy that keeps frames back keeps them each time.
                shares = [self.share_of_frames(proxy) for _ in range(3)]
                self.assertGreater(max(shares), 0.25, proxy)
            job = json.loads(ask(haproxy.url + "/v1/jobs", {"operation": "infer", "prompt": "Hi", "max_tokens": 2})[2])
            status, _, text = ask(haproxy.url + job["sse_url"])
            self.assertEqual((status, "[DONE]" in text), (200, True), text)
        finally:
            haproxy.stop()
            nginx.terminate()
            nginx.wait(10)
            folder.cleanup()
            worker.stop()

    def test_two_image_workers_one_of_which_stops(self):
        workers = [Program.images(), Program.images()]
        proxy = None
        try:
            addresses = [worker.ready().url.removeprefix("http://") for worker in workers]
            proxy = Proxy("images.cfg", IMAGES_1=addresses[0], IMAGES_2=addresses[1])
            wait_for("the proxy", lambda: ask(proxy.url + "/ready")[0] == 200)
            # Pictures come, one at a time from each worker.
            results = []
            picture = lambda: results.append(ask(proxy.url + "/sdapi/v1/txt2img", self.PICTURE))
            threads = [threading.Thread(target=picture) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual([status for status, *_ in results], [200] * 4)
            made = [worker.ask("/metrics")[2] for worker in workers]
            counts = [int(re.search(r"^sd_worker_pictures_total (\d+)", text, re.MULTILINE)[1]) for text in made]
            self.assertEqual((sum(counts), min(counts) > 0), (4, True), counts)
            # Requests have names, and the worker's log the same.
            self.assertRegex(results[0][1]["X-Request-Id"], "^[0-9a-f-]{36}$")
            # Jobs are found where they were made.
            body = {"operation": "image_generation", "prompt": "x", "steps": 1, "width": 64, "height": 64}
            jobs = [json.loads(ask(proxy.url + "/v1/jobs", body)[2])["job_id"] for _ in range(5)]
            known = [json.loads(worker.ask("/v1/jobs")[2]) for worker in workers]
            self.assertTrue(all(any(job in json.dumps(one) for job in jobs) for one in known), "on both workers")
            for job in jobs * 2:
                status, _, text = ask(f"{proxy.url}/v1/jobs/{job}")
                self.assertEqual(status, 200, text)
            # One stops: the other goes on, and no request fails.
            workers[0].tell_to_stop()
            for _ in range(3):
                self.assertEqual(ask(proxy.url + "/sdapi/v1/txt2img", self.PICTURE)[0], 200)
            workers[0].stop()
            self.assertEqual(ask(proxy.url + "/v1/models")[0], 200)
            # It comes back on its port.
            port = int(addresses[0].split(":")[1])
            workers[0] = Program.images(port=port).ready()
            wait_for("its turn", lambda: self.takes_part(proxy, workers[0]), 30)
        finally:
            if proxy:
                proxy.stop()
            for worker in workers:
                worker.stop()

    def takes_part(self, proxy, worker):
        """Whether a worker makes pictures again."""
        results = []
        picture = lambda: results.append(ask(proxy.url + "/sdapi/v1/txt2img", self.PICTURE)[0])
        threads = [threading.Thread(target=picture) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [200, 200])
        return int(re.search(r"pictures_total (\d+)", worker.ask("/metrics")[2])[1]) > 0


if __name__ == "__main__":
    unittest.main()
