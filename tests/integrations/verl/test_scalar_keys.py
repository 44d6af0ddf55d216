# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every key that verl 0.9.1 can log, through its real ``Tracking.log`` with the real plug-in, as the files of the run show it."""

import importlib.util
import itertools
import json
import math
import re
from types import SimpleNamespace

import pytest

from verl_otel.model import Instrument
from verl_otel.prometheus_names import metric_name
from verl_otel.semconv.metric_names import METRICS

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed here"),
    pytest.mark.full,
]

# As in verl's source, alternatives in braces, what is generated (layers, options, reward keys) by an example.
KEYS = """
training/{global_step,epoch} training/num_turns/{mean,max,min}
training/off_policy/{trajectory_spans,trajectory_staleness,trajectory_staleness_worst}/{mean,max,min}
{training,validation}/off_policy/evicted_samples
{training,validation}/off_policy/evicted_samples_staleness/{mean,max,min}
{training,validation}/filter_groups/{evicted_samples,discarded_surplus_samples}
{training,validation}/rollout_failure/evicted_samples
training/rollout_probs_diff_{valid,max,mean,std} training/rollout_actor_probs_pearson_corr
global_seqlen/{min,max,mean,minmax_diff,balanced_min,balanced_max}
actor/{entropy,pg_loss,pg_clipfrac,pg_clipfrac_lower,ppo_kl,entropy_loss,kl_loss,kl_coef,loss,grad_norm,lr}
actor/{reward_kl_penalty,reward_kl_penalty_coeff,mtp_losses,mtp_losses_0}
{actor,critic}/perf/{max_memory_allocated_gb,max_memory_reserved_gb,cpu_memory_used_gb}
perf/mfu/{actor,critic,actor_infer} perf/{total_num_tokens,time_per_step,throughput}
critic/{score,rewards,advantages,returns,values}/{mean,max,min}
critic/{vf_explained_var,vf_loss,vf_clipfrac,vpred_mean,loss,grad_norm,lr}
response_length/{mean,max,min,clip_ratio} response_length_non_aborted/{mean,max,min,clip_ratio}
response/aborted_ratio prompt_length/{mean,max,min,clip_ratio} {num_turns,tool_call_counts}/{min,max,mean}
timing_s/{gen,reward,old_log_prob,ref,values,adv,update_critic,update_actor,save_checkpoint,update_weights,testing}
timing_s/{start_profile,stop_profile,dump_rollout_generations,switch_to_trainer,switch_wait,switch_to_rollout}
timing_s/{wait_for_enough_samples,generate_async,sync_rollout_weights,gen_max}
timing_s/agent_loop/{generate_sequences,tool_calls,compute_score,num_preempted}/{min,max,mean}
timing_s/agent_loop/slowest/{generate_sequences,tool_calls,compute_score,num_preempted,prompt_length,response_length}
timing_per_token_ms/{gen,ref,values,adv,update_critic,update_actor}
rollout_corr/{training_ppl,training_log_ppl,rollout_ppl,rollout_log_ppl,log_ppl_diff,log_ppl_abs_diff}
rollout_corr/{log_ppl_diff_max,log_ppl_diff_min,ppl_ratio,kl,k3_kl,chi2_token,chi2_seq}
rollout_corr/rollout_is_{mean,std,max,min,eff_sample_size,ratio_fraction_high,ratio_fraction_low,oob_ratio}
rollout_corr/rollout_is_{batch_norm_factor,seq_mean,seq_std,seq_max,seq_min,seq_max_deviation,seq_fraction_high}
rollout_corr/rollout_is_seq_fraction_low rollout_corr/rollout_rs_{masked_fraction,seq_masked_fraction}
rollout_corr/rollout_rs_{token_k1,seq_sum_k1,geometric}_{masked_fraction,seq_masked_fraction,mean,std,max,min}
rollout_corr/rollout_rs_token_k1_{fraction_high,fraction_low,seq_mean,seq_std,seq_max,seq_min,seq_max_deviation}
rollout_corr/rollout_rs_token_k1_{seq_fraction_high,seq_fraction_low}
variance_proxy/{proxy1_signal_strength,proxy2_total_power,proxy3_pure_noise,expected_a_squared,expected_w}
rollout/{spec_accept_rate,spec_accept_length}
rollout/moe/{max_vio,min_vio,avg_vio}/{layer_0,layer_1,layer_47,max,avg}
rollout/moe/{routed_experts_found,routed_expert_assignments}
{actor/,}distillation/{loss,abs_loss,loss_max,loss_min,overlap_ratio,overlap_token_advantage}
actor/distillation/{student,teacher}_mass{,_max,_min} gdpo/{accuracy,format reward}/{mean,std,max,min}
checkpoint_engine/{changed_ratio,changed_elems,payload_mbytes,flushes}
separate_async/switch/{threshold_ratio,wait_samples,idle}
separate_async/decision/{sampleable_count,remaining,should_switch_to_rollout,per_sample_time_seconds}
separate_async/decision/effective_switch_cost_seconds
val-core/{openai/gsm8k,my set (hard)}/{acc,reward}/{mean@4,maj@4/mean,best@4/mean}
val-aux/openai/gsm8k/score/{mean@4,std@4,best@2/mean,best@2/std,worst@2/mean,worst@2/std,maj@2/mean,maj@2/std}
val-aux/num_turns/{min,max,mean}
fully_async/count/{total_generated_samples,stale_samples_processed,stale_trajectory_processed}
fully_async/count/{current_param_version,dropped_stale_samples,staleness_samples}
fully_async/monitor/{active_tasks_size,queue/pending_queue_size,queue/mq_queue_size}
fully_async/static/{max_required_samples,required_samples,staleness_threshold,max_queue_size,max_concurrent_samples}
fully_async/partial/{total_partial_num,partial_ratio,max_partial_span}
fully_async/processing_time/{avg,max,min,tp50,tp95,tp99}
fully_async/rollouter/{active_time,version_time,idle_ratio,step_generated_samples}
fully_async/trainer/idle_ratio fully_async/total_wait_time
dynamic_resource/{train_compute_time_s,train_allocated_time_s,train_resource_utilization}
dynamic_resource/{rollout_resource_utilization,resource_utilization,mq_size}
train/{loss,grad_norm,lr,mfu,global_tokens,total_tokens(B)} val/loss
"""
NAMED_OTHERWISE = {
    "train/total_tokens(B)": "verl.train.total_tokens_B_",
    **{f"gdpo/format reward/{each}": f"verl.gdpo.format_reward.{each}" for each in ("mean", "std", "max", "min")},
}
"""Keys with characters that OpenTelemetry does not allow."""
GIB, MIB = 1 << 30, 1 << 20

RUN = """
import json, sys
from verl.utils.profiler import marked_timer
from verl.utils.tracking import Tracking
import numpy, torch
tracking = Tracking("p", "e", ["file"])
tracking.log(json.load(open(sys.argv[1])), 7)
timing = {}
with marked_timer("timing_s/param_sync", timing):
    pass
tracking.log({f"timing_s/{key}": value for key, value in timing.items()}, 8)
kinds = {
    "float": 0.1, "int": 3, "true": True, "false": False, "nan": float("nan"), "infinite": float("-inf"), "large": 2**62 + 1,
    "float32": numpy.float32(0.1), "float64": numpy.float64(0.1), "int64": numpy.int64(-5), "bool_": numpy.bool_(True),
    "array": numpy.array(2.5), "nan32": numpy.float32("nan"), "tensor": torch.tensor(0.5), "half": torch.tensor(0.25).half(),
    "bfloat16": torch.tensor(0.25).bfloat16(), "tensor_int": torch.tensor(4), "tensor_bool": torch.tensor(True),
    "one_element": torch.tensor([1.0]), "grad": torch.tensor(1.5, requires_grad=True), "nan_tensor": torch.tensor(float("nan")),
    "text": "0.5", "none": None, "list": [1.0], "two": torch.tensor([1.0, 2.0]),
}
logger = Tracking("p", "e", [])
logger.log({f"kind/{key}": value for key, value in kinds.items()}, 9)
logger.log({"a b": 1, "a_b": 2, "a/b": 3, "ä/%": 4, "": 5, 6: 6, "training/step": 7, "x" * 400: 8, "x" * 401: 9}, 10)
logger.log({f"mine/{number}": number for number in range(1500)}, 11)
logger.log({"actor/pg_loss": -1.0}, 12)
tracking.finish()
"""


def expand(pattern):
    """Every key that a pattern with alternatives in braces stands for."""
    parts = re.split(r"\{([^}]*)\}", pattern)
    choices = [part.split(",") if number % 2 else [part] for number, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def keys():
    """Every key of the table; a blank inside a brace belongs to the key."""
    patterns = re.findall(r"(?:\{[^}]*\}|\S)+", KEYS)
    return [key for pattern in patterns for key in expand(pattern)]


@pytest.fixture(scope="module")
def run(clean_python, read_run, tmp_path_factory):
    """One process that logs everything, and what its files say: points by step, and verl's own log."""
    folder = tmp_path_factory.mktemp("scalars")
    values = {key: round(0.25 + number * 1.0625, 6) for number, key in enumerate(keys())}
    (folder / "values.json").write_text(json.dumps(values))
    environ = {
        "VERL_OTEL_ENABLED": "1",
        "VERL_OTEL_RUN_DIR": str(folder / "runs"),
        "VERL_OTEL_RUN_ID": "r",
        "VERL_FILE_LOGGER_PATH": str(folder / "verl.jsonl"),
    }
    done = clean_python("-c", RUN, folder / "values.json", cwd=folder, seconds=300, **environ)
    loaded = read_run(folder / "runs" / "r")
    steps, points = {}, {}
    for scalar in loaded.scalars:
        if scalar.name == "verl.training.step":
            steps[scalar.time_ns] = int(scalar.value)
    for scalar in loaded.scalars:
        points.setdefault(steps.get(scalar.time_ns), {})[(scalar.name, scalar.labels)] = scalar.value
    lines = "".join(path.read_text() for path in (folder / "runs" / "r").glob("metrics-*"))
    return SimpleNamespace(
        values=values, points=points, lines=lines, said=done.stderr, log=(folder / "verl.jsonl").read_text()
    )


def value(run, step, name, **labels):
    """The value of one series at one step."""
    wanted = {(key.replace("_", "."), each) for key, each in labels.items()}
    (found,) = (each for (own, has), each in run.points[step].items() if own == name and wanted <= set(has))
    return found


def test_every_key_comes_out_under_its_name(run):
    """Each of verl's keys is a gauge ``verl.<key with dots>`` without labels, its value that of verl's own file logger."""
    logged = json.loads(run.log.splitlines()[0])
    assert logged["step"] == 7
    assert logged["data"] == run.values
    assert len(run.values) > 300
    for key, expected in logged["data"].items():
        if not key.startswith(("val-core/", "val-aux/openai")):
            name = NAMED_OTHERWISE.get(key, "verl." + key.replace("/", "."))
            assert run.points[7][(name, ())] == expected, key


def test_validation_keys_are_labels(run):
    """Each validation key is a series of one metric, with data source, variable and aggregate as labels."""
    found = {dict(labels)["verl.data.source"] for name, labels in run.points[7] if name == "verl.validation.score"}
    assert found == {"openai/gsm8k", "my set (hard)"}
    labels = {"verl_data_source": "my set (hard)", "verl_variable": "acc", "verl_aggregate": "best@4/mean"}
    expected = run.values["val-core/my set (hard)/acc/best@4/mean"]
    assert value(run, 7, "verl.validation.score", **labels) == expected
    validation = [key for key in run.values if key.startswith(("val-core/", "val-aux/openai"))]
    assert sum(name == "verl.validation.score" for name, _ in run.points[7]) == len(validation)


def test_nothing_else_comes_out(run):
    """One log makes its keys, the step, the mean reward and what corrects a unit, with names that differ in Prometheus, too."""
    names = {name for name, _ in run.points[7]}
    corrected = {name for name in names if name in METRICS} - {"verl.validation.score"}
    assert corrected == {
        *("verl.training.step", "verl.average_reward", "verl.weight_sync.payload", "verl.gpu.memory.peak"),
        *(f"verl.rollout.slowest.{each}" for each in ("duration", "preemptions", "tokens")),
        *("verl.rollout.trajectory.preemptions", "verl.host.memory.used"),
    }
    plain = [key for key in run.values if not key.startswith(("val-core/", "val-aux/openai"))]
    assert len(names) - len(corrected) - 1 == len(plain)
    assert len({metric_name(Instrument(name, "gauge", "", "")) for name in names - set(METRICS)}) == len(plain)


def test_units_that_a_key_gets_wrong_are_said_right_besides(run):
    """Counts under ``timing_s`` are counts, ``gb`` and ``mbytes`` are bytes: each as a metric of the catalogue."""
    values, loop = run.values, "timing_s/agent_loop"
    slowest = "verl.rollout.slowest"
    assert value(run, 7, f"{slowest}.duration", verl_part="llm") == values[f"{loop}/slowest/generate_sequences"]
    assert value(run, 7, f"{slowest}.duration", verl_part="tool") == values[f"{loop}/slowest/tool_calls"]
    assert value(run, 7, f"{slowest}.duration", verl_part="reward") == values[f"{loop}/slowest/compute_score"]
    assert value(run, 7, f"{slowest}.tokens", verl_token_type="prompt") == values[f"{loop}/slowest/prompt_length"]
    assert value(run, 7, f"{slowest}.tokens", verl_token_type="response") == values[f"{loop}/slowest/response_length"]
    assert value(run, 7, f"{slowest}.preemptions") == values[f"{loop}/slowest/num_preempted"]
    for each in ("min", "mean", "max"):
        found = value(run, 7, "verl.rollout.trajectory.preemptions", verl_aggregate=each)
        assert found == values[f"{loop}/num_preempted/{each}"]
    assert value(run, 7, "verl.weight_sync.payload") == values["checkpoint_engine/payload_mbytes"] * MIB
    for role, kind in itertools.product(("actor", "critic"), ("allocated", "reserved")):
        found = value(run, 7, "verl.gpu.memory.peak", verl_update_role=role, verl_memory_type=kind)
        assert found == values[f"{role}/perf/max_memory_{kind}_gb"] * GIB
    host = value(run, 7, "verl.host.memory.used", verl_update_role="critic")
    assert host == values["critic/perf/cpu_memory_used_gb"] * GIB


def test_a_timer_with_a_doubled_prefix_is_the_phase_that_it_means(run):
    """``timing_s/timing_s/param_sync`` is not copied: the phase histogram says it, as ``param_sync``."""
    assert set(run.points[8]) == {("verl.training.step", ())}
    assert '{"key":"verl.phase","value":{"stringValue":"param_sync"}}' in run.lines.replace(" ", "")


def test_kinds_of_numbers(run):
    """Python's, numpy's and torch's numbers come out with their value, NaN too; what is no number is left out."""
    found = {name.removeprefix("verl.kind."): each for (name, _), each in run.points[9].items() if "kind" in name}
    assert {key for key, each in found.items() if math.isnan(each)} == {"nan", "nan32", "nan_tensor"}
    expected = {"float": 0.1, "int": 3, "true": 1, "false": 0, "infinite": -math.inf, "large": float(2**62 + 1)}
    expected |= {"float32": 0.10000000149011612, "float64": 0.1, "int64": -5, "bool_": 1, "array": 2.5, "tensor": 0.5}
    expected |= {"half": 0.25, "bfloat16": 0.25, "tensor_int": 4, "tensor_bool": 1, "one_element": 1, "grad": 1.5}
    assert {key: each for key, each in found.items() if not math.isnan(each)} == expected
    assert str(2**62 + 1) in run.lines, "an integer lost digits"


def test_odd_and_colliding_keys_are_all_there(run):
    """Keys with odd characters, an empty one, one that is no text, very long ones and equal names: a series each."""
    del run.points[10][("verl.training.step", ())]
    assert sorted(run.points[10].values()) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    for name, _ in run.points[10]:
        assert len(name) <= 255, name
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", name), name


def test_more_than_a_thousand_keys(run):
    """New keys beyond a thousand are left out with one line; known ones go on, and verl's own log is whole."""
    assert 500 < len(run.points[11]) < 1000
    assert run.points[12][("verl.actor.pg_loss", ())] == -1
    assert run.said.count("more than 1000 different keys in Tracking.log") == 1
