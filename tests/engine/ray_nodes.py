"""A cluster of two machines, pretended on this one, of which the larger is lost while units are being done.

Prints what came of them as one line of JSON.
"""

import json

from task2vec.engine import Unit, open_engine
from task2vec.engine.connection import import_ray
from tests.engine.cases import Remembering

UNITS = 12


def main() -> None:
    """Starts the cluster, and loses a machine after the first results."""
    ray = import_ray(is_alone=False)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    machine = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    done, failures, is_lost = set(), 0, False
    with open_engine("ray", address=cluster.address, workers=3, threads=1) as engine:
        for result in engine.run(Remembering(), [Unit(str(number), 1.0) for number in range(UNITS)]):
            if result.is_last:
                failures += result.failure is not None
                done.add(result.key)
            if len(done) >= 2 and not is_lost:
                is_lost = True
                cluster.remove_node(machine, allow_graceful=False)
    told = {"units": len(done), "failures": failures, "is_left_running": ray.is_initialized()}
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
