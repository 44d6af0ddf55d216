# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Command lines, log lines and URLs are kept without secrets, and command lines of verl stay useful."""

import time

import pytest

from verl_otel._internal.masking import is_secret_name, mask_command, mask_text, mask_url

PPO = ["python", "-m", "verl.trainer.main_ppo"]
SECRET_LINES = [
    # named like a secret
    [*PPO, "+trainer.accessToken=S3CRET"],
    [*PPO, "custom_reward_function.reward_kwargs.judge_key=S3CRET"],
    [*PPO, "+reward_model.api_key=S3CRET"],
    [*PPO, "trainer.hub_token=S3CRET"],
    [*PPO, "trainer.logger.PASSWORD=S3CRET"],
    [*PPO, "+data.client_secret=S3CRET=more\nS3CRET"],
    [*PPO, "++data.aws-credentials=S3CRET"],
    [*PPO, "+ray_kwargs.ray_init.runtime_env.env_vars.ANYTHING=S3CRET"],
    [*PPO, "+ray_kwargs.ray_init.runtime_env={env_vars:{WANDB_API_KEY:S3CRET}}"],
    [*PPO, "+ray_kwargs.ray_init.runtime_env={'HF_TOKEN':'S3CRET'}"],
    [*PPO, '+data.env={"HF_TOKEN": "S3CRET"}'],
    [*PPO, "+trainer.hub={user: me, token: S3CRET}"],
    [*PPO, "+data.storage='AccountName=a;AccountKey=S3CRET;EndpointSuffix=b'"],
    [*PPO, "+reward_model.headers={Authorization: Bearer S3CRET}"],
    [*PPO, "+reward_model.signature=S3CRET"],
    [*PPO, "+reward_model.x-api-key=S3CRET"],
    [*PPO, "+reward_model.privateKey=S3CRET"],
    [*PPO, "+reward_model.db_pwd=S3CRET"],
    [*PPO, "+reward_model.cookie=S3CRET"],
    [*PPO, "+reward_model.sentry_dsn=S3CRET"],
    [*PPO, "+data.passphrase=S3CRET"],
    # shaped like a secret
    [*PPO, "+trainer.note=sk-S3CRETabcdefgh"],
    [*PPO, "+trainer.note=sk-proj-S3CRET_abcdefgh"],
    [*PPO, "+trainer.note=hf_S3CRETabcdefgh"],
    [*PPO, "+trainer.note=ghp_S3CRETabcdefgh"],
    [*PPO, "+trainer.note=github_pat_S3CRETabcdefgh"],
    [*PPO, "+trainer.note=glpat-S3CRETabcdefgh"],
    [*PPO, "+trainer.note=xoxb-S3CRET-abcdefgh"],
    [*PPO, "+trainer.note=AKIAS3CRETABCDEFGH"],
    [*PPO, "+trainer.note=AIzaS3CRETabcdefghijkl"],
    [*PPO, "+trainer.note=nvapi-S3CRETabcdefgh"],
    [*PPO, "+trainer.note=gsk_S3CRETabcdefgh"],
    [*PPO, "+trainer.note=eyJhbGciOiJIUzI1NiJ9.S3CRET.abc"],
    [*PPO, "+trainer.note=S3CRET8b1a9953c4611296a827abf8c47804d7e1f0"],
    [*PPO, "+trainer.note=S3CRETabcdefghijk/lm=="],
    [*PPO, "+trainer.note=[a,b,sk-S3CRETabcdefgh]"],
    [*PPO, "+trainer.note='-----BEGIN PRIVATE KEY-----S3CRET'"],
    # in addresses
    [*PPO, "data.train_files=https://user:S3CRET@host/path"],
    [*PPO, "data.train_files=https://user:S3CRET@S3CRET@host/path"],
    [*PPO, "data.train_files=https://S3CRET@host/path"],
    [*PPO, "data.train_files=https://a.blob/x?sv=1&sig=S3CRET"],
    [*PPO, "data.train_files=s3://b/x?X-Amz-Signature=S3CRET"],
    [*PPO, "data.train_files=[/a,https://host/x?S3CRET]"],
    [*PPO, "https://host/x?sig=S3CRET"],
    # options and other words
    [*PPO, "--api-key", "S3CRET"],
    [*PPO, "--api-key=S3CRET"],
    [*PPO, "--token", "S3CRET", "x"],
    [*PPO, "--authorization", "Bearer", "S3CRET"],
    [*PPO, "-H", "Authorization: Bearer S3CRET"],
    [*PPO, "-H", "x: bearer S3CRET"],
    [*PPO, "-u", "user:S3CRET"],
    [*PPO, "-pS3CRET"],
    [*PPO, "--ssh-private-key", "S3CRET"],
    [*PPO, "--pin", "S3CRET"],
    [*PPO, "S3CRET"],
    [*PPO, "WANDB_API_KEY=S3CRET"],
    [*PPO, "AWS_SECRET_ACCESS_KEY=S3CRET"],
    [*PPO, "OTEL_EXPORTER_OTLP_HEADERS=x-team=S3CRET"],
    [*PPO, "a=1,api_key=S3CRET"],
    [*PPO, "my.own.setting=S3CRET"],
    [*PPO, "--config-name=sk-S3CRETabcdefgh"],
    [*PPO, "--config-path", "https://me:S3CRET@host"],
    [*PPO, "+sk-S3CRETabcdefgh=1"],
    [*PPO, "~trainer.sk-S3CRETabcdefgh"],
    # source
    ["python", "-c", "import wandb; wandb.login(key='S3CRET')"],
    ["python", "-c", "trainer.x='S3CRET'"],
    ["python", "-Bc", "data.x='S3CRET'", "trainer.n=1"],
    ["python", "-X", "S3CRET=8b1a9953c4611296a827abf8c47804d7e1f0", "a.py"],
    ["bash", "-c", "export HF_TOKEN=S3CRET && python train.py"],
    ["bash", "-lc", "S3CRET"],
    ["/opt/sk-S3CRETabcdefgh/python", "a.py"],
    [*PPO, *["trainer.a=1"] * 1000, "S3CRET"],
    [*PPO, "trainer.note=" + "x " * 1000 + "S3CRET"],
    [*PPO, "trainer.note=two\nS3CRET"],
]
KEPT_LINES = [
    PPO,
    ["/usr/bin/python3", "-u", "-X", "dev", "-X", "importtime=1", "train_ppo.py", "trainer.nnodes=2"],
    [
        "python",
        "/a/b/bin/torchrun",
        "--standalone",
        "--nnodes=1",
        "--nproc-per-node=8",
        "-m",
        "verl.trainer.sft_trainer",
    ],
    ["python", "-m", "torch.distributed.run", "--nproc_per_node", "8", "--node_rank", "0", "train.py"],
    [*PPO, "--config-name=ppo_megatron_trainer", "--config-path", "/a/b"],
    [*PPO, "data.train_files=/data/gsm8k/train.parquet", "data.val_files=[/a/x.parquet,'/a/y.parquet']"],
    [*PPO, "data.train_files=hdfs://host:9000/a/b.parquet", "data.train_files=s3://bucket/a/b.parquet"],
    [*PPO, "data.prompt_key=prompt", "data.reward_fn_key=data_source", "data.image_key=images", "data.max_tokens=5"],
    [*PPO, "data.tokenizer=/a/b", "algorithm.token_level=1", "algorithm.adv_estimator=grpo"],
    [*PPO, "actor_rollout_ref.model.path=deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"],
    [*PPO, "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4"],
    [*PPO, "actor_rollout_ref.rollout.max_num_batched_tokens=8192", "actor_rollout_ref.actor.optim.lr=1e-6"],
    [*PPO, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384", "critic.optim.lr=1e-5"],
    [*PPO, "+actor_rollout_ref.rollout.engine_kwargs.vllm.enable_prefix_caching=True", "~reward_model"],
    [
        *PPO,
        "++trainer.logger=['console','wandb']",
        "trainer.project_name=verl_examples",
        "trainer.experiment_name=a-b_1",
    ],
    [*PPO, "trainer.default_local_dir=/ckpt/run-20261121-093000", "trainer.total_epochs=15", "trainer.save_freq=-1"],
    [*PPO, "custom_reward_function.path=/a/reward.py", "custom_reward_function.name=compute_score"],
    [*PPO, "ray_kwargs.ray_init.num_cpus=8", "hydra.run.dir=/a/b", "global_profiler.tool=null"],
    [*PPO, "reward.num_workers=4", "transfer_queue.enable=True", "distillation.enabled=False"],
]


@pytest.mark.parametrize("arguments", SECRET_LINES, ids=lambda arguments: arguments[-1][:60].replace("S3CRET", ""))
def test_a_secret_in_a_command_line_is_masked(arguments):
    """Nothing of a secret stands in the command line that is kept, whatever its name, shape and place."""
    shown = mask_command(arguments)
    assert "S3CRET" not in " ".join(shown)
    assert "***" in " ".join(shown)


@pytest.mark.parametrize("arguments", KEPT_LINES, ids=lambda arguments: arguments[-1][:60])
def test_a_command_line_of_verl_is_kept(arguments):
    """Program, module, options of launchers and overrides of verl's configuration stand in the record as they were given."""
    assert mask_command(arguments) == arguments


def test_there_are_enough_command_lines():
    """The attack from outside had 52 command lines."""
    assert len(SECRET_LINES) >= 60


def test_the_key_of_a_masked_override_is_kept():
    """That a setting was given is kept, its value is not."""
    assert mask_command([*PPO, "trainer.hub_token=S3CRET"])[-1] == "trainer.hub_token=***"


@pytest.mark.parametrize(
    "line",
    [
        "curl -u user:S3CRET https://host/path",
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


@pytest.mark.parametrize("name", ["prompt_key", "max_tokens", "tokenizer", "keyboard", "monkey_patch", "author"])
def test_an_ordinary_name_is_none_of_a_secret(name):
    """Columns and numbers of tokens are no secrets."""
    assert not is_secret_name(name)


def test_a_url_is_kept_without_login_and_query():
    """Scheme, host and path stay."""
    assert mask_url("https://me:pw@host:8443/v1/x?sig=a#b") == "https://***@host:8443/v1/x?***#***"
    assert mask_url("http://host/v1/x") == "http://host/v1/x"
    assert mask_url("/x?a=b") == "/x?***"
    assert mask_url("http://[bad") == "***"
