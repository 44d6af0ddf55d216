# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Alerts of GPUs and hosts. One process reads the GPUs, another one computes on them."""

from tests.dashboards.scenes import Says, Scene
from tests.dashboards.trainings import MINUTE, RUN, TRAINER, WORKER, Training, of_run, watch

GPU = 'hw_id="GPU-1a2b"'
READER = f'job="verl",instance="{RUN}/llm_server-0",verl_role="llm_server",verl_run_id="{RUN}"'
OWNER = f'verl_gpu_owner{{{WORKER},{GPU},hw_name="0",hw_model="H200"}}'
NAMES = {"verl_run_id": RUN, "hw_id": "GPU-1a2b"}


def parts(*pieces):
    """Return values from (how many, value) pieces."""
    return [value for count, value in pieces for _ in range(count)]


def busy(minutes, phase, utilization, minutes_of_phase=None):
    """A GPU of the trainer's workers, and the phase that is open."""
    count = minutes * 2 + 1
    return {
        OWNER: [1] * count,
        f'verl_phase_active{{{TRAINER},verl_phase="{phase}"}}': minutes_of_phase or [1] * count,
        f'hw_gpu_utilization_ratio{{{READER},{GPU},hw_type="gpu",hw_gpu_task="general"}}': utilization,
    }


def underused():
    """At 30 % while it trains; before that, at 0 % while others generate, which is nothing of its role."""
    return Scene(
        "a GPU is underused",
        busy(90, "update_actor", parts((60, 0), (60, 0.3), (61, 0.95)), parts((60, 0), (121, 1))),
        {29: set(), 38: set(), 50: {"GPUUnderused"}, 59: {"GPUUnderused"}, 72: set(), 90: set()},
        (
            Says(
                55,
                "GPUUnderused",
                {**NAMES, "level": "low"},
                f"Run {RUN}, GPU GPU-1a2b: used 30% of the time in which its role works",
            ),
        ),
    )


def fairly_used():
    """At 60 %: worth knowing, no more. DCGM's exporter reads this GPU; it knows nothing of the run."""
    series = busy(60, "ref", parts((121, 60)))
    reader = next(name for name in series if name.startswith("hw_gpu"))
    series['DCGM_FI_DEV_GPU_UTIL{instance="node:9400",UUID="GPU-1a2b",gpu="0"}'] = series.pop(reader)
    return Scene(
        "a GPU is used fairly, as DCGM says",
        series,
        {10: set(), 40: {"GPUUnderused"}},
        (
            Says(
                40,
                "GPUUnderused",
                {**NAMES, "level": "fair"},
                f"Run {RUN}, GPU GPU-1a2b: used 60% of the time in which its role works",
            ),
        ),
    )


def dips():
    """Of every ten minutes it trains two, at 90 %: the dips between are not its role's."""
    cycle = parts((4, 0.9), (16, 0.05)) * 9 + [0.9]
    phase = parts((4, 1), (16, 0)) * 9 + [1]
    return Scene(
        "a GPU dips between phases", busy(90, "update_actor", cycle, phase), {n: set() for n in range(0, 90, 5)}
    )


def memory():
    """An engine holds 94 % from the start; then the use grows to 97 % and stays there."""
    return fill(
        "the memory of a GPU grows",
        ((240, 131), (181, 136)),
        {100: set(), 235: set(), 250: {"GPUMemoryHigh"}, 310: {"GPUMemoryHigh"}, 400: {"GPUMemoryHigh"}},
        Says(
            260,
            "GPUMemoryHigh",
            {**NAMES, "instance": f"{RUN}/actor_rollout_ref-0"},
            f"{RUN}/actor_rollout_ref-0: the memory of GPU GPU-1a2b was 97.14% full in the last hour",
        ),
    )


def memory_of_a_new_run():
    """The use jumps to 99 % in the first hour of the GPU; it is over an hour after the use has fallen."""
    expected = {15: set(), 22: set(), **{minute: {"GPUMemoryHigh"} for minute in (30, 55, 75, 100, 155)}, 170: set()}
    return fill("the memory of a GPU is full in the first hour", ((20, 70), (81, 138), (100, 70)), expected)


def memory_in_one_phase():
    """The memory is nearly full in each second half hour: one alert, and not one for each step."""
    cycles = ((30, 70), (30, 138)) * 5
    expected = {25: set(), **{minute: {"GPUMemoryHigh"} for minute in range(40, 300, 10)}}
    return fill("the memory of a GPU is full in a phase of each step", cycles, expected)


def fill(name, used, expected, *says):
    """Return a scene of a GPU with 140 GiB of memory: minutes and GiB in use."""
    gigabyte = 1 << 30
    values = [gigabyte * each for each in parts(*used)]
    return Scene(
        name,
        {
            OWNER: [1] * len(values),
            f'hw_gpu_memory_usage_bytes{{{READER},{GPU},hw_type="gpu"}}': values,
            f'hw_gpu_memory_limit_bytes{{{READER},{GPU},hw_type="gpu"}}': [140 * gigabyte] * len(values),
        },
        expected,
        says,
        interval=60,
    )


def errors():
    """One XID; corrected errors of the memory all the time."""
    name = f'hw_errors_total{{{READER},{GPU},hw_type="gpu",error_type='
    return Scene(
        "a GPU has errors",
        {f'{name}"ecc.corrected"}}': list(range(81)), f'{name}"xid"}}': parts((40, 0), (41, 1))},
        {19: set(), 22: {"GPUErrors"}, 28: {"GPUErrors"}, 32: set()},
        (
            Says(
                25,
                "GPUErrors",
                {**NAMES, "error_type": "xid"},
                f"Run {RUN}, GPU GPU-1a2b: the driver reports errors (xid)",
            ),
        ),
    )


def unreadable():
    return Scene(
        "a GPU cannot be read",
        {f'verl_gpu_unreadable_total{{{READER},{GPU},reason="lost"}}': [*parts((40, 0)), *range(20), *parts((41, 20))]},
        {19: set(), 26: {"GPUErrors"}, 45: set()},
        (
            Says(
                26,
                "GPUErrors",
                {**NAMES, "error_type": "unreadable", "reason": "lost"},
                f"Run {RUN}, GPU GPU-1a2b: the driver does not answer for it (lost)",
            ),
        ),
    )


def throttled():
    """For 6 % of the time, then 20 %, by its temperature; at its power limit all the time, which is normal."""
    thermal = [1.8 * n for n in range(60)]
    thermal += [thermal[-1] + 6 * n for n in range(1, 81)]
    thermal += [thermal[-1]] * 41
    name = f"verl_gpu_throttled_seconds_total{{{READER},{GPU},reason="
    return Scene(
        "a GPU is throttled",
        {f'{name}"thermal"}}': thermal, f'{name}"power"}}': [30 * n for n in range(181)]},
        {20: set(), 30: set(), 35: set(), 50: {"GPUThrottled"}, 69: {"GPUThrottled"}, 82: set()},
        (
            Says(
                60,
                "GPUThrottled",
                {**NAMES, "reason": "thermal"},
                f"Run {RUN}, GPU GPU-1a2b: slowed down 20% of the time (thermal)",
            ),
        ),
    )


def host():
    """The free memory of a host: low and steady, then on its way to nothing."""
    gigabyte = 1 << 30
    steady = [100 * gigabyte] * 120
    falling = [(100 - 0.4 * n) * gigabyte for n in range(120)]
    held = [52.4 * gigabyte] * 121
    return Scene(
        "the memory of a host runs out",
        {
            f"verl_host_memory_available_bytes{{{READER}}}": [*steady, *falling, *held],
            f"verl_host_memory_limit_bytes{{{READER}}}": [500 * gigabyte] * 361,
        },
        {59: set(), 66: set(), 95: {"HostMemorySlope"}, 119: {"HostMemorySlope"}, 160: set()},
        (
            of_run(
                110,
                "HostMemorySlope",
                f"the host of {RUN}/llm_server-0 will be out of memory within 4 hours, at the slope of the last 30 minutes",
                instance=f"{RUN}/llm_server-0",
            ),
        ),
    )


def far_from_full():
    """What grows fast and is far from its end is no alert: a GPU up to 60 %, a host up to 56 %."""
    gigabyte = 1 << 30
    return Scene(
        "memories fill, far from full",
        {
            OWNER: [1] * 361,
            f'hw_gpu_memory_usage_bytes{{{READER},{GPU},hw_type="gpu"}}': parts(
                (240, 70 * gigabyte), (121, 84 * gigabyte)
            ),
            f'hw_gpu_memory_limit_bytes{{{READER},{GPU},hw_type="gpu"}}': [140 * gigabyte] * 361,
            f"verl_host_memory_available_bytes{{{READER}}}": [(400 - 1.5 * n) * gigabyte for n in range(121)],
            f"verl_host_memory_limit_bytes{{{READER}}}": [500 * gigabyte] * 121,
        },
        {each: set() for each in range(0, 180, 6)},
    )


def healthy():
    return Scene(
        "a training with busy GPUs",
        {**watch([Training(MINUTE)], 60), **busy(60, "update_actor", [0.9] * 121)},
        {n: set() for n in range(0, 60, 5)},
    )


SCENES = [
    underused(),
    fairly_used(),
    dips(),
    memory(),
    memory_of_a_new_run(),
    memory_in_one_phase(),
    errors(),
    unreadable(),
    throttled(),
    host(),
    far_from_full(),
    healthy(),
]
