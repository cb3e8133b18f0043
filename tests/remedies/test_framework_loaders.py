"""What is written, read by each framework's own loader (`make test-frameworks` installs them all)."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml
from oomdoc.remedies.frameworks.all_frameworks import FRAMEWORKS, detect
from oomdoc.remedies.frameworks.interface import Target
from oomdoc.remedies.interface import Setting

CONFIGS = Path(__file__).parent / "configs"
PLAN = (
    Setting(name="mixed-precision", options={"dtype": "bfloat16"}),
    Setting(name="activation-checkpointing", options={"modules": ["Block"], "every": 1}),
    Setting(name="gradient-accumulation", options={"micro_batches": 4}),
    Setting(name="fsdp", options={"wrap": ["Block"], "reshard_after_forward": True}),
    Setting(name="cpu-offload", options={"what": ["optimizer_state"]}),
    Setting(name="fused-optimizer", options={"fused": True}),
)
CHUNKED = Setting(name="chunked-loss", options={"chunks": 8})


def _written(name: str, folder: Path, *more: Setting, **replaced: str) -> Path:
    """The config of that name with the plan in it, after texts in it were replaced."""
    text = (CONFIGS / name).read_text()
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    target = Target(batch_size=16, world_size=8)
    patch = detect(text, name).patch(text, (*PLAN, *more), target)
    assert patch.text != text
    path = folder / name
    path.write_text(patch.text)
    return path


def test_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    path = _written("hf.yaml", tmp_path, **{"output_dir: runs/sft-7b": f"output_dir: {tmp_path}\nuse_cpu: true"})
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (arguments,) = parser.parse_yaml_file(path, allow_extra_keys=True)
    assert arguments.bf16
    assert arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps == 16
    assert arguments.optim == "adamw_torch_fused"
    assert arguments.fsdp
    plugin = arguments.fsdp_plugin_args
    assert plugin["fsdp_version"] == 2
    assert plugin["reshard_after_forward"] is True
    assert plugin["activation_checkpointing"] is True
    assert plugin["transformer_cls_names_to_wrap"] == "Block"


@pytest.mark.parametrize(("name", "version"), [("accelerate.yaml", 2), ("accelerate_fsdp1.yaml", 1)])
def test_accelerate_fsdp(name: str, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    utils = _launched(name, tmp_path, monkeypatch)
    for key in ("FSDP_SYNC_MODULE_STATES", "FSDP_CPU_RAM_EFFICIENT_LOADING"):  # what only a GPU can do
        monkeypatch.setenv(key, "false")
    plugin = utils.FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == version
    assert plugin.reshard_after_forward is True if version == 2 else plugin.sharding_strategy.name == "FULL_SHARD"
    assert plugin.transformer_cls_names_to_wrap == ["Block"]
    assert plugin.activation_checkpointing
    assert plugin.cpu_offload


@pytest.mark.slow
def test_accelerate_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed")
    plugin = _launched("accelerate_deepspeed.yaml", tmp_path, monkeypatch).DeepSpeedPlugin()
    zero = plugin.deepspeed_config["zero_optimization"]
    assert zero["stage"] == 3
    assert zero["offload_optimizer"]["device"] == "cpu"


def _launched(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """accelerate.utils, under the environment that `accelerate launch` makes of the config."""
    launch = pytest.importorskip("accelerate.commands.launch")
    utils = pytest.importorskip("accelerate.utils")
    path = _written(name, folder)
    arguments = launch.launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    arguments, defaults, _ = launch._validate_launch_command(arguments)
    arguments.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    assert arguments.mixed_precision == "bf16"
    if arguments.use_deepspeed:
        _, environment = utils.launch.prepare_deepspeed_cmd_env(arguments)
    else:
        environment = utils.launch.prepare_multi_gpu_env(arguments)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    return utils


@pytest.mark.slow
def test_deepspeed(tmp_path: Path) -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    # one rank here, so the global batch of one
    path = _written("deepspeed.json", tmp_path, **{'"train_batch_size": 128': '"train_batch_size": 16'})
    read = config.DeepSpeedConfig(str(path))
    assert read.train_micro_batch_size_per_gpu * read.gradient_accumulation_steps == 16
    assert read.zero_config.stage == 3
    assert read.zero_config.offload_optimizer.device == "cpu"
    assert read.bfloat16_config.enabled
    assert not read.float16_config.enabled


@pytest.mark.slow
def test_deepspeed_reads_the_comments_that_stay(tmp_path: Path) -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    text = '{\n\t// per card\n\t"train_micro_batch_size_per_gpu": 8, # as large as fits\n\t"steps_per_print": 9,\n}\n'
    path = tmp_path / "ds.json"
    path.write_text(FRAMEWORKS["deepspeed"].patch(text, PLAN[:3], Target(batch_size=8)).text)
    assert "# as large as fits" in path.read_text()
    assert config.DeepSpeedConfig(str(path)).gradient_accumulation_steps == 4


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp  ", "fsdp ", "deepspeed_stage_2"])
def test_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    cli = pytest.importorskip("lightning.pytorch.cli")
    lightning = pytest.importorskip("lightning.pytorch")
    pytest.importorskip("deepspeed")
    pytest.importorskip("jsonargparse")  # what LightningCLI is made of
    _project(monkeypatch, lightning)
    path = _written("lightning.yaml", tmp_path, **{"strategy: ddp  ": f"strategy: {strategy}"})
    parser = cli.LightningArgumentParser()
    parser.add_lightning_class_args(lightning.Trainer, "trainer")
    parser.add_lightning_class_args(lightning.LightningModule, "model", subclass_mode=True)
    parser.add_lightning_class_args(lightning.LightningDataModule, "data", subclass_mode=True)
    parser.add_optimizer_args()
    parser.add_argument("--seed_everything", type=int)
    read = parser.parse_path(str(path))
    assert read.trainer.precision == "bf16-mixed"
    assert read.data.init_args.batch_size * read.trainer.accumulate_grad_batches == 16
    assert read.optimizer.init_args.fused is True
    if strategy.strip() == "fsdp":
        assert read.trainer.strategy == "fsdp"
    else:
        assert read.trainer.strategy.class_path.endswith("DeepSpeedStrategy")
        assert (read.trainer.strategy.init_args.stage, read.trainer.strategy.init_args.offload_optimizer) == (3, True)


def _project(monkeypatch: pytest.MonkeyPatch, lightning: Any) -> None:
    """The user's modules that the config names."""

    class Captioner(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, width: int) -> None:
            super().__init__()

    class Captions(lightning.LightningDataModule):  # type: ignore[misc]
        def __init__(self, batch_size: int, num_workers: int) -> None:
            super().__init__()

    for name, members in (("", {}), (".models", {"Captioner": Captioner}), (".data", {"Captions": Captions})):
        module = types.ModuleType(f"project{name}")
        vars(module).update(members)
        for each in members.values():
            each.__module__, each.__qualname__ = module.__name__, each.__name__
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.slow
def test_torchtune(tmp_path: Path) -> None:
    omegaconf = pytest.importorskip("omegaconf")
    tune = pytest.importorskip("torchtune.config", exc_type=ImportError)
    read = omegaconf.OmegaConf.load(_written("torchtune.yaml", tmp_path, CHUNKED))
    tune.validate(read)
    assert read.batch_size * read.gradient_accumulation_steps == 16
    assert read.enable_activation_checkpointing is True
    assert read.loss._component_.endswith("CEWithChunkedOutputLoss")


@pytest.mark.slow
def test_torchtitan(tmp_path: Path) -> None:
    manager = pytest.importorskip("torchtitan.config_manager", exc_type=ImportError)
    path = _written("torchtitan.toml", tmp_path)
    read = manager.ConfigManager().parse_args(["--job.config_file", str(path)])
    assert read.training.global_batch_size == 16 * 4  # 8 ranks, two of which share a batch
    assert read.training.local_batch_size == 4
    assert read.activation_checkpoint.mode == "full"
    assert read.parallelism.fsdp_reshard_after_forward == "always"
    assert read.optimizer.implementation == "fused"


@pytest.mark.slow
def test_axolotl(tmp_path: Path) -> None:
    schema = pytest.importorskip("axolotl.utils.schemas.config", exc_type=ImportError)
    read = schema.AxolotlInputConfig(**yaml.safe_load(_written("axolotl.yml", tmp_path, CHUNKED).read_text()))
    assert read.micro_batch_size * read.gradient_accumulation_steps == 16
    assert read.fsdp_version == 2
    assert read.fsdp_config.transformer_layer_cls_to_wrap == "Block"
    assert read.fsdp_config.offload_params
    assert read.bf16 is True
    assert read.chunked_cross_entropy
