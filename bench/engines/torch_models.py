"""The whole models of `bench/models.json`: PyTorch's own classes with random weights, and their inputs."""

import json
import pathlib

DEFINITIONS = json.loads((pathlib.Path(__file__).resolve().parent.parent / "models.json").read_text())["models"]
# By name; those for a GPU only where one is asked for.
MODELS = {row["name"]: row for row in DEFINITIONS if row["device"] == "cpu"}
GPU_MODELS = {row["name"]: row for row in DEFINITIONS if row["device"] == "gpu"}


def gpu_names(training):
    """Those for a GPU; in training those that have a bar for it."""
    return [name for name, row in GPU_MODELS.items() if not training or "training_speed" in row]


def device(name):
    """Where the model of that name is measured, as torch calls it."""
    return "cuda" if name in GPU_MODELS else "cpu"


def tensor(torch, spec):
    if spec is None:
        return None
    shape = spec["shape"]
    match spec["fill"]:
        case "normal":
            return torch.randn(shape)
        case "integers":
            return torch.randint(0, spec["high"], shape)
        case "ones":
            return torch.ones(shape, dtype=torch.int64)
    raise ValueError(f"no fill {spec['fill']!r}")


def build(name, device="cpu"):
    """The model for inference and its inputs, the same in every process."""
    import importlib

    import torch

    row = {**MODELS, **GPU_MODELS}[name]
    torch.manual_seed(0)
    library = importlib.import_module(row["library"])
    if row["library"] == "torch_decoder":
        # Made where they stay: its weights are gigabytes.
        with torch.device(device):
            module = getattr(library, row["model"])(**row["config"])
    elif row["library"] == "torchvision":
        module = getattr(library.models, row["model"])(weights=None, **row["config"])
    else:
        config = dict(row["config"])
        module = getattr(library, row["model"])(getattr(library, config.pop("class"))(**config))
    dtype = getattr(torch, row.get("dtype", "float32"))
    module = module.to(device=device, dtype=dtype).eval()
    inputs = [tensor(torch, spec) for spec in row["inputs"]]
    return module, tuple(x if x is None else x.to(device, dtype if x.is_floating_point() else None) for x in inputs)


# ---- training --------------------------------------------------------------------------------------------------------


def for_training(torch, module):
    """Puts a module in training, but drops nothing at random: every engine has the same step."""
    module.train()
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob"):
        if hasattr(getattr(module, "config", None), key):
            setattr(module.config, key, 0.0)


def result(torch, out):
    """The tensor that the models return first."""
    if isinstance(out, torch.Tensor):
        return out
    return out[0] if isinstance(out, (tuple, list)) else next(iter(out.values()))


def step(torch, module, run, inputs):
    """A training step: forward by `run`, which is the module or what was compiled of it, a loss in eager, backward, gradients from none."""
    module.zero_grad(set_to_none=True)
    out = result(torch, run(*inputs))
    out.float().square().mean().backward()
    return out
