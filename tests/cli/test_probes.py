"""`task2vec probes`: the offline probe is always there."""

import json


def test_the_offline_probe_is_listed(call):
    result = call("probes")
    assert result.exit_code == 0, result.stderr
    assert "tf_efficientnet_lite0" in result.stdout
    assert "--download" in result.stdout


def test_json(call):
    result = call("probes", "--json")
    assert result.exit_code == 0, result.stderr
    rows = {row["name"]: row for row in json.loads(result.stdout)["probes"]}
    assert rows["tf_efficientnet_lite0"]["is_local"] is True
