# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Command lines, log lines and URLs are kept without secrets, and command lines of verl stay useful."""

import re
import time

import pytest

from verl_otel._internal.masking import is_secret_name, mask_command, mask_text, mask_url

PPO = ["python", "-m", "verl.trainer.main_ppo"]
SECRET_LINES = [
    [*PPO, "+reward_model.judge_key=S3CRET"],
    [*PPO, "+reward_model.pin_token=1234567"],
    [*PPO, "+ray_kwargs.ray_init.runtime_env.env_vars.ANYTHING=S3CRET"],
    [*PPO, "+trainer.hub={user: me, token: S3CRET}"],
    [*PPO, "trainer.experiment_name=S3CRET"],
    [*PPO, "data.train_files=https://user:S3CRET@host/path"],
    [*PPO, "--api-key", "S3CRET"],
    [*PPO, "--api-key=S3CRET"],
    [*PPO, "-H", "Authorization: Bearer S3CRET"],
    [*PPO, "S3CRET"],
    [*PPO, "WANDB_API_KEY=S3CRET"],
    ["python", "-c", "import wandb; wandb.login(key='S3CRET')"],
    ["bash", "-lc", "S3CRET"],
    ["/opt/sk-S3CRETabcdefgh/python", "a.py"],
    [*PPO, *["trainer.a=1"] * 1000, "S3CRET"],
]
KEPT_LINES = [
    [*PPO, "trainer.nnodes=2", "actor_rollout_ref.actor.optim.lr=1e-6", "algorithm.adv_estimator=grpo"],
    ["/usr/bin/python3", "-u", "train_ppo.py", "+actor_rollout_ref.rollout.enforce_eager=True", "data.max_tokens=5"],
    ["python", "/a/b/bin/torchrun", "--nnodes=1", "--nproc-per-node=8", "-m", "verl.trainer.sft_trainer"],
]


@pytest.mark.parametrize("arguments", SECRET_LINES, ids=lambda arguments: arguments[-1][:60].replace("S3CRET", ""))
def test_a_secret_in_a_command_line_is_masked(arguments):
    """Nothing of a secret stands in the command line that is kept, whatever its name, shape and place."""
    shown = mask_command(arguments)
    assert not {"S3CRET", "1234567"} & set(re.findall(r"S3CRET|1234567", " ".join(shown)))
    assert "***" in " ".join(shown)


@pytest.mark.parametrize("arguments", KEPT_LINES, ids=lambda arguments: arguments[-1][:60])
def test_a_command_line_of_verl_is_kept(arguments):
    """Program, module, script, and settings whose values are numbers or words of a short list."""
    assert mask_command(arguments) == arguments


def test_the_key_of_a_masked_override_is_kept():
    """That a setting was given is kept, its value is not."""
    assert mask_command([*PPO, "trainer.hub_token=S3CRET"])[-1] == "trainer.hub_token=***"


@pytest.mark.parametrize(
    "line",
    [
        "POST https://user:S3CRET@host/path failed",
        "GET https://host/path?sig=S3CRET&x=1 200",
        "authorization: Bearer S3CRET",
        "{'Authorization': 'Basic S3CRETabc='}",
        "export HF_TOKEN=S3CRET",
        "login(key='S3CRET')",
        "accessToken=S3CRET",
        "using sk-S3CRETabcdefgh for this run",
        "hf_S3CRETabcdefgh",
        '{"api_key": "S3CRET with spaces"}',
        "wandb login --api-key S3CRET",
        "DefaultEndpointsProtocol=https;AccountKey=S3CRET;x=1",
    ],
)
def test_a_secret_in_a_log_line_is_masked(line):
    """The last lines of a log are kept without secrets."""
    assert "S3CRET" not in mask_text(line)


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000)",
        '  File "/a/b/python3.11/site-packages/torch/nn/modules/module.py", line 1518, in _wrapped_call_impl',
        "torch.OutOfMemoryError: Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
        "step:5 - actor/entropy:0.41 - response_length/mean:512.0 - num_tokens=81234",
        "Segmentation fault (core dumped)",
    ],
)
def test_an_ordinary_log_line_is_kept(line):
    """What helps to understand the end of a process stays."""
    assert mask_text(line) == line


@pytest.mark.full
@pytest.mark.parametrize(
    "line", ["a" * 20000, "a=" * 10000, "://" * 7000, "-a " * 7000, "a1" * 10000, "=" * 20000, "a." * 9000]
)
def test_a_long_line_takes_no_time(line):
    """No line makes the masking slow."""
    begin = time.process_time()
    mask_text(line)
    assert time.process_time() - begin < 1.0


@pytest.mark.parametrize("name", ["max_tokens", "tokenizer", "keyboard", "monkey_patch", "author"])
def test_an_ordinary_name_is_none_of_a_secret(name):
    """Numbers of tokens are no secrets."""
    assert not is_secret_name(name)


def test_a_url_is_kept_without_login_and_query():
    """Scheme, host and path stay."""
    assert mask_url("https://me:pw@host:8443/v1/x?sig=a#b") == "https://***@host:8443/v1/x?***#***"
    assert mask_url("http://host/v1/x") == "http://host/v1/x"
    assert mask_url("/x?a=b") == "/x?***"
    assert mask_url("http://[bad") == "***"
