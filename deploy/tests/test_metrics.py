"""docs/metrics.md and the dashboards, compared with what running workers give."""

import json
import re
import unittest

import promql_parser

from programs import DEPLOY, REPOSITORY, Program, images_options, llm_options

# Labels that Prometheus adds.
SCRAPED = {"job", "instance"}
# What Grafana puts into queries.
INTERVAL = "$__rate_interval"


def parse(text):
    """Metrics by the names of their samples (histograms by theirs): type and labels, `le` left out."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    found = {}
    for name, kind in types.items():
        # OpenMetrics leaves it out here.
        name = name + "_total" if kind == "counter" and not name.endswith("_total") else name
        found[name] = (kind, set())
    for name, labels in re.findall(r"^([a-z][a-z_:0-9]*)(?:\{(.*)\})? ", text, re.MULTILINE):
        family = name if name in found else re.sub(r"_(bucket|sum|count)$", "", name)
        found[family][1].update(set(re.findall(r'(\w+)="', labels)) - {"le"})
    return found


def documented():
    """Metrics of the manual: type, labels (None where a table has none), and whether they are there always."""
    found = {}
    for line in (REPOSITORY / "docs/metrics.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" |")]
        names = re.findall(r"`((?:llm_|models_|sd_worker_|vllm:)\w+)`", cells[0])
        if not line.startswith("|") or not names:
            continue
        labels = {label for label in cells[2].split(", ") if label} if len(cells) == 5 else None
        for name in names:
            found[name] = (cells[1], labels, "*only*" not in line.lower())
    return found


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        workers = [Program.llm(), Program.images()]
        for worker in workers:
            worker.ready()
        # Figures with labels are there once something happened.
        workers[0].ask("/v1/completions", {"prompt": "Hi", "max_tokens": 2})
        cls.found = {}
        for worker in workers:
            cls.found |= parse(worker.ask("/metrics")[2])
            worker.stop()
        cls.manual = documented()

    def test_the_manual_has_every_metric(self):
        self.assertGreater(len(self.found), 50)
        for name, (kind, labels) in self.found.items():
            self.assertIn(name, self.manual, "docs/metrics.md lacks it")
            its_kind, its_labels, _ = self.manual[name]
            self.assertEqual(its_kind, kind, name)
            if its_labels is not None:
                self.assertEqual(its_labels, labels, name)

    def test_the_manual_has_no_others(self):
        has_vllm = any(name.startswith("vllm:") for name in self.found)
        for name, (*_, always) in self.manual.items():
            # Those of adapters and of what a request gave are there once there are such.
            if name.startswith("vllm:") and (not has_vllm or name in ("vllm:lora_requests_info", "vllm:request_success_total")):
                continue
            if always:
                self.assertIn(name, self.found, "docs/metrics.md has it, no worker does")

    def test_options_that_the_manual_names(self):
        flags = llm_options().flags | images_options().flags
        named = re.findall(r"`(--[a-z-]+)", (REPOSITORY / "docs/metrics.md").read_text())
        self.assertGreater(len(named), 5)
        self.assertEqual(set(named) - flags, set())

    def selectors(self, query):
        """All selections of time series in a query."""
        query = query.replace(INTERVAL, "5m")
        found = []

        def walk(node):
            if isinstance(node, promql_parser.VectorSelector):
                found.append(node)
            for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
                inner = getattr(node, name, None)
                if inner is not None and not isinstance(inner, (str, int, float)):
                    walk(inner)
            for inner in getattr(node, "args", None) or []:
                walk(inner)

        walk(promql_parser.parse(query))
        self.assertTrue(found, query)
        return found

    def check_query(self, query):
        used = set()
        for selector in self.selectors(query):
            family = re.sub(r"_(bucket|sum|count)$", "", selector.name)
            name = selector.name if selector.name in self.manual else family
            self.assertIn(name, self.manual, query)
            kind, labels, _ = self.manual[name]
            self.assertEqual(name != selector.name, kind == "histogram", query)
            matched = {matcher.name for matcher in selector.matchers.matchers}
            self.assertLessEqual(matched, labels | SCRAPED, query)
            used |= labels | SCRAPED | ({"le"} if kind == "histogram" else set())
        for names in re.findall(r"\bby \(([^)]*)\)", query):
            self.assertLessEqual(set(names.split(", ")), used, query)
        # A counter alone says nothing: it goes on from one start to the next.
        for counter in re.findall(r"(\w+_total)\{[^}]*\}(?!\[)", query):
            self.assertIn(counter, ("llm_restarts_total", "sd_worker_restarts_total"), query)
        return used

    def test_dashboards(self):
        boards = sorted((DEPLOY / "grafana").glob("*.json"))
        self.assertEqual(len(boards), 2)
        for path in boards:
            board = json.loads(path.read_text())
            self.assertGreaterEqual(board["schemaVersion"], 30)
            self.assertTrue(board["title"] and board["uid"])
            panels = board["panels"]
            self.assertEqual(len({panel["id"] for panel in panels}), len(panels), "ids are given once")
            places = set()
            for panel in panels:
                place = panel["gridPos"]
                self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
                cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
                self.assertFalse(cells & places, f"{panel['title']} lies on another panel")
                places |= cells
                self.assertEqual("targets" in panel, panel["type"] != "row")
                self.assertIn(panel["type"], ("row", "stat", "timeseries"))
                refs = [target["refId"] for target in panel.get("targets", [])]
                self.assertEqual(len(set(refs)), len(refs), panel["title"])
                for target in panel.get("targets", []):
                    self.assertEqual(target["datasource"]["uid"], "${datasource}")
                    labels = self.check_query(target["expr"])
                    shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                    self.assertLessEqual(shown, labels, target["expr"])
            variables = {variable["name"]: variable for variable in board["templating"]["list"]}
            self.assertEqual(set(variables), {"datasource", "job", "instance"})
            for name in ("job", "instance"):
                selection = re.fullmatch(r"label_values\((.*), (\w+)\)", variables[name]["definition"])
                self.assertEqual(selection[2], name)
                self.check_query(selection[1])


if __name__ == "__main__":
    unittest.main()
