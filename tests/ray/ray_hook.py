# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A script that starts Ray with a setup hook or settings of the user and prints what a worker saw.

Usage: ray_hook.py function|path|environment|job
"""

import json
import os
import sys

import ray


def users_hook():
    """The user's own hook; ``ray_hook.users_hook`` as a dotted path."""
    import os

    os.environ["USERS_HOOK"] = "ran"


@ray.remote
def look():
    import os
    import sys

    plugin = sys.modules.get("verl_otel.plugin")
    return {
        "users": os.environ.get("USERS_HOOK") == "ran",
        "ours": plugin is not None and plugin._loaded,
        "value": os.environ.get("MY_VALUE"),
        "run_id": os.environ.get("VERL_OTEL_RUN_ID"),
        "folder": os.environ.get("VERL_OTEL_RUN_DIR"),
    }


def main():
    kind = sys.argv[1]
    os.environ.setdefault("VERL_OTEL_ENABLED", "1")
    from verl_otel import plugin, session
    from verl_otel.integrations.ray import init_hook

    plugin.load()
    if kind == "job":
        ray.init()
    else:
        hooks = {"function": users_hook, "path": "ray_hook.users_hook"}
        runtime_env = {"env_vars": {"MY_VALUE": "kept"}}
        if kind in hooks:
            runtime_env["worker_process_setup_hook"] = hooks[kind]
        ray.init(address="local", num_cpus=2, include_dashboard=False, runtime_env=runtime_env)
    found = ray.get(look.remote())
    if kind == "environment":
        found["drivers"] = session.current_session().config.run_id
        found["forwarded_headers"] = any(name.endswith("HEADERS") for name in init_hook.settings_to_forward())
    elif kind != "job":
        found = {name: found[name] for name in ("users", "ours", "value")}
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
