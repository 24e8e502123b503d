"""A plugin of pytest that expects the failures in differences/."""

import pytest

import differences
import utils


def pytest_collection_modifyitems(items):
    table = differences.read()
    for item in items:
        entry = differences.find(table, item.path.name, item.name)
        if entry:
            # Strict: a test that passes although it is listed fails.
            reason = f"{entry['kind']}: {entry['reason']}"
            item.add_marker(pytest.mark.xfail(strict=True, reason=reason, run=entry.get("run", True)))


@pytest.fixture(autouse=True)
def stop_servers():
    yield
    for server in list(utils.server_instances):
        server.stop()
