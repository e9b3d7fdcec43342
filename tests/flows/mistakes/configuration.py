"""Mistakes in keys and values, in the pipeline, in where a run goes, and in what TRL is told."""

from tests.flows.mistakes.project import command, override

VALUES = [
    override("unknown key", "reinforce.betta=1", says=["reinforce.betta: unknown key; did you mean 'beta'?"]),
    override("unknown section", "stf.max_steps=1", says=["stf: unknown key; did you mean 'sft'?"]),
    override("TRL's name", "reinforce.num_generations=4", says=["num_generations: unknown key", "'group_size'"]),
    override(
        "unknown key of a section", "sft={lora: {rank: 4}}", says=["sft.lora.rank: unknown key; allowed: alpha, "]
    ),
    override(
        "section that takes any key",
        "sft.trainer={adam_beta1: 0.8}",
        says=["sft.trainer.adam_beta1: is not set, so there is nothing to override; write +sft.trainer.adam_beta1="],
    ),
    override(
        "key of what takes any",
        "model.chat_template_kwargs.enable_thinking=false",
        says=["model.chat_template_kwargs.enable_thinking: is not set", "write +model.chat_template_kwargs.enable_"],
    ),
    override("values without -m", "seed=1,2", says=["seed=1,2: has several values; add -m to sweep over them"]),
    override("text for a number", "reinforce.beta=high", says=["reinforce.beta: expected a number, got 'high'"]),
    override("fraction for a count", "sft.batch_size=1.5", says=["sft.batch_size: expected a whole number, got '1.5'"]),
    override(
        "text for a switch", "sft.shared_prefix=maybe", says=["sft.shared_prefix: expected true or false, got 'maybe'"]
    ),
    override("number for a mapping", "sft.lora=16", says=["sft.lora: expected a mapping, got 16"]),
    override("text for a list", "sft.lora.target_modules=q", says=["sft.lora.target_modules: expected a list"]),
    override("temperature 0", "reinforce.temperature=0", says=["reinforce.temperature: must be above 0, got 0"]),
    override("group of one", "reinforce.group_size=1", says=["reinforce.group_size: must be at least 2, got 1"]),
    override("negative beta", "reinforce.beta=-1", says=["reinforce.beta: must be at least 0, got -1"]),
    override("negative rate", "sft.learning_rate=-1e-4", says=["sft.learning_rate: must be above 0, got -0.0001"]),
    override("all rows held out", "held_out=1", says=["held_out: must be below 1, got 1"]),
    override("name with a slash", "name=a/b", says=["name: becomes a directory's; use letters", "'a/b'"]),
    override(
        "processes that cannot divide a step",
        "hardware.num_processes=2",
        "sft.batch_size=3",
        says=["hardware.num_processes: 2 processes cannot divide the 3 rows", "sft.batch_size 3", "sft.batch_size=4"],
    ),
    override(
        "processes that cannot divide the prompts",
        "hardware.num_processes=3",
        says=["cannot divide the 8 ", "batch_size 8 x ", "set hardware.num_processes=2"],
    ),
    override("no accelerate config", "hardware.accelerate_config=no.yaml", says=["no.yaml", "cannot be read: No such"]),
    override("open quote", "name='mine", says=["name='mine: cannot be read as KEY=VALUE", "close every quote"]),
    override("accents without quotes", "name=café", says=["name=café: cannot", "in quotes of its own: KEY='TEXT'"]),
    override(
        "a group's member that is a number", "suite=[3]", says=["a group takes names of its files", "suite=['3']"]
    ),
    override("vLLM's name", "reinforce.vllm.gpu_memory=1", says=["reinforce.vllm.gpu_memory: unknown key; did you"]),
    override("twice said", "reinforce.vllm.temperature=1", says=["vllm.temperature: is reinforce.temperature"]),
    override(
        "a password in vLLM's address",
        "reinforce.vllm={mode: server, server_base_url: 'http://bob:pw@host:8000'}",
        says=["reinforce.vllm.server_base_url: takes no user or password"],
    ),
    override(
        "vLLM of no mode", "reinforce.vllm.server_port=1", says=["reinforce.vllm.server_port: is of mode: server"]
    ),
    override(
        "vLLM in 4 bits",
        "reinforce.vllm.mode=colocate",
        "hardware.load_in_4bit=true",
        says=["pipeline.reinforce: reinforce.vllm.mode goes without hardware.load_in_4bit"],
    ),
    override("no such group member", "model=gpt", says=["model: there is no 'model/gpt'; available: ", "tiny"]),
    command("no such experiment", "run", "experiment=mein", says=["no 'experiment/mein'; available: ", "mine"]),
    command("no such --config-dir", "run", "--config-dir", "none", says=["--config-dir: there is no directory none"]),
    command(
        "tab in YAML",
        "run",
        "experiment=tab",
        files={"conf/experiment/tab.yaml": "name: x\n\tsft: {}\n"},
        says=["tab.yaml", "cannot be read as YAML", "line 2"],
    ),
    command(
        "latin-1 in YAML",
        "run",
        "experiment=latin",
        files={"conf/experiment/latin.yaml": "# @package _global_\nname: ä\n".encode("latin-1")},
        says=["latin.yaml, line 2: byte 0xe4 is not UTF-8; save the file as UTF-8"],
    ),
]

SWEEPS = [
    command(
        "bad job", "run", "-m", "experiment=mine", "reinforce.beta=0.1,-1", says=["reinforce.beta: must be", "job"]
    ),
    command("bad sweep", "run", "-m", "experiment=mine", "reinforce.betta=1,2", says=["betta: unknown key; did you"]),
    command(
        "client",
        *["run", "-m", "experiment=mine", "seed=1,2", "orchestration.runner=ray"],
        "orchestration.ray.address='ray://localhost:10001'",
        says=["orchestration.ray.address: ray://localhost:10001 is for Ray's client", "HOST:PORT of its head"],
    ),
    command(
        "no cluster",
        *["run", "-m", "experiment=mine", "seed=1,2"],
        *["orchestration.runner=ray", "orchestration.ray.address=127.0.0.1:1"],
        *["hardware.device=cuda", "hardware.dtype=bfloat16"],  # which need not be here
        says=["orchestration.ray.address: no Ray cluster that we can use at 127.0.0.1:1 (", "ray start --head"],
    ),
]

PIPELINE = [
    command("no pipeline", "run", says=["pipeline: has no steps; choose one, e.g. experiment=demo"]),
    override("cycle", "+pipeline.sft.start=reinforce", says=["pipeline: the steps ", "wait for each other in a cycle"]),
    override("dangling start", "+pipeline.sft.start=warmup", says=["pipeline.sft: there is no step 'warmup'; steps: "]),
    override(
        "dangling rows", "pipeline.preference.data.from=pears", says=["pipeline.preference: there is no step 'pears'"]
    ),
    override("no such stage", "pipeline.sft.stage=stf", says=["pipeline.sft.stage: unknown stage 'stf'; known: "]),
    override("no such data", "pipeline.sft.data=aq", says=["pipeline.sft.data: no data is named 'aq' (there are: qa)"]),
    override("no such reward", "suite.qa.reward=wrong", says=["suite.qa.reward: no reward is named 'wrong'", "right"]),
    override(
        "judge without a baseline",
        "+suite.open={data: qa, judge: {url: 'http://127.0.0.1:9', model: m}}",
        "pipeline.evaluate.baseline=null",
        says=["pipeline.evaluate: suite 'open' has a judge, which compares with", "baseline: base"],
    ),
    override(
        "judge that is not there",
        "+suite.open={data: qa, judge: {url: 'http://127.0.0.1:9', model: m}}",
        says=["suite.open.judge.url: nobody answers at http://127.0.0.1:9/v1/chat/completions", "start the server"],
    ),
    override(
        "judge as a reward",
        "+reward.open={kind: {type: judge}}",
        says=["reward.open.kind: a judge is no reward", "suite"],
    ),
    override("detour to nowhere", "probe.otherwise=wramup", says=["probe.otherwise: there is no step 'wramup'", "sft"]),
    override("start at no run", "+pipeline.sft.start=run/no", says=["pipeline.sft: no: no run has that name in "]),
    override(
        "pinned setting",
        "+pipeline.reinforce.set.beta=1",
        "reinforce.beta=2",
        says=["reinforce.beta: step 'reinforce' pins", "override pipeline.reinforce.set.beta"],
    ),
]

PLACES = [
    override("no threads", "hardware.threads=0", says=["hardware.threads: must be at least 1, got 0"]),
    override("unknown device", "hardware.device=tpu", says=["hardware.device: ", "'tpu'", "auto, cpu, cuda, mps"]),
    override("tracking by a path", "tracking.uri=mlruns", says=["tracking.uri: 'mlruns' is no", "sqlite:///FILE"]),
    override("tracking by FTP", "tracking.uri=ftp://host", says=["tracking.uri: 'ftp://host' is no", "http://HOST"]),
    override("runs in a file", "runs_dir=rows.jsonl", says=["runs_dir: cannot ", "rows.jsonl"]),
    override("runs where none can be", "runs_dir=/proc/runs", says=["runs_dir: cannot ", "/proc/runs"]),
    command("progress of no run", "progress", "nope", says=["nope: no run has that name in ", "`ratchet runs`"]),
    command("latest of none", "progress", "latest", says=["latest: there is no run in ", "experiment=smoke"]),
    command("generate from no run", "generate", "nope", "hi", says=["nope: no run has that name in "]),
    command("export of no run", "export", "nope", "--out", "out", says=["nope: no run has that name in "]),
    command("comparison with no run", "compare", "nope", says=["nope: no run has that name in "]),
    command("probe of no run", "probe", "experiment=mine", "--start", "nope", says=["nope: no run has that name in "]),
    command("negative temperature", "generate", "r", "p", "--temperature", "-1", says=["--temperature must be 0 or"]),
]

TRAINER = [
    override("typo", "+sft.trainer.adam_beta3=0.9", says=["sft.trainer.adam_beta3: unknown key; did you", "SFTConfig"]),
    override("wrong type", "+sft.trainer.adam_beta2=high", says=["sft.trainer.adam_beta2: expected float, got 'high'"]),
    override("ours", "+sft.trainer.learning_rate=1", says=["sft.trainer.learning_rate: ", "; use sft.learning_rate"]),
    override("of GRPO", "+reinforce.trainer.num_generations=4", says=["num_generations: ", "use reinforce.group_size"]),
    override("of DPO", "+preference.trainer.padding_free=true", says=["preference.trainer.padding_free: is set by"]),
    override(
        "refused by TRL", "+sft.trainer.debug=bogus", says=["sft.trainer: bogus is not a valid DebugOption", "tpu"]
    ),
    override(
        "of DPO for ORPO",
        "preference.method=orpo",
        "+preference.trainer.loss_type=[ipo]",
        says=["preference.trainer.loss_type: unknown key", "ORPOConfig"],
    ),
]
