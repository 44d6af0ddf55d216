# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster of two raylets, which stand for two nodes, and trainings on it that say where they serve.

Usage: ray_nodes.py cluster OBSTACLES
       ray_nodes.py train ADDRESS FOLDER_OF_THE_SECOND_NODE

Both print RESULT lines and read commands, one per line; the end of the input ends them.
"""

import json
import os
import sys

HEAD = "node:__internal_head__"


def answer(result):
    print("RESULT " + json.dumps(result), flush=True)


def cluster(obstacles):
    """Start two raylets. Workers of the second one lack verl-otel unless their runtime environment says otherwise."""
    from ray._raylet import GcsClient
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=options)
    path = os.pathsep.join(filter(None, [obstacles, os.environ.get("PYTHONPATH")]))
    node = made.add_node(
        num_cpus=2,
        object_store_memory=100 << 20,
        env_vars={"PYTHONPATH": path, "CPU_BED_HIDE": "verl_otel@worker"},
    )
    client = GcsClient(address=made.gcs_address)
    answer({"address": made.address})
    for command in map(str.strip, sys.stdin):
        if command == "keys":
            answer([key.decode() for key in client.internal_kv_keys(b"", b"verl_otel", timeout=60)])
        elif command == "lose":
            made.remove_node(node, allow_graceful=False)
            answer("lost")
    made.shutdown()


class AgentLoopWorker:
    """Records, and so serves its metrics."""

    def work(self):
        import verl_otel
        from verl_otel import session

        with verl_otel.span("work"):
            pass
        verl_otel.counter("worked").add(1)
        session.flush()
        from verl_otel.session import prometheus_targets

        return {
            "pid": os.getpid(),
            "targets": [
                entry["targets"][0] for entry in prometheus_targets.read_own_targets(session.current_session().config)
            ],
        }

    def add_engine(self):
        """Have an engine, whose page is our own, listed as verl's hook does."""
        from verl_otel.integrations.verl import prometheus

        prometheus.add_engines(self.work()["targets"], "vllm")


def train(address, second):
    """Train on both nodes: an actor on each, the one on the second node with a folder of its own."""
    from verl_otel import plugin

    plugin.load()
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=address, log_to_driver=False)
    import verl_otel

    with verl_otel.span("driver"):
        pass
    actors = []
    for number, node in enumerate(sorted(ray.nodes(), key=lambda node: HEAD not in node["Resources"])):
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        variables = {"CPU_BED_HIDE": "", "VERL_OTEL_RUN_DIR": second} if number else {}
        options = {"num_cpus": 0, "scheduling_strategy": strategy, "runtime_env": {"env_vars": variables}}
        actors.append(ray.remote(AgentLoopWorker).options(name=f"agent_loop_worker_{number}", **options).remote())
    answer(ray.get([actor.work.remote() for actor in actors]))
    for command in map(str.strip, sys.stdin):
        if command == "engine":
            ray.get(actors[0].add_engine.remote())
        elif command == "kill":
            ray.kill(actors[1])
        elif command == "end":
            ray.shutdown()
        answer(command)


if __name__ == "__main__":
    {"cluster": cluster, "train": train}[sys.argv[1]](*sys.argv[2:])
