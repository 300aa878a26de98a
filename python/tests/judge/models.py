"""Whole models with random weights, forward and backward, against eager.

Each is made from a seed at a small size, so that all of them run in minutes.
"""

import argparse
import time
import warnings

import torch

from judge import counts, doors, pool, record, verdict

TOKENS = 320


def _vision(name, size, batch=2, **how):
    def make():
        import torchvision

        return getattr(torchvision.models, name)(weights=None, **how), (torch.randn(batch, 3, size, size),)

    return make


def _text(model, config, inputs, **how):
    def make():
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**how)), inputs()

    return make


def _ids(rows=2, columns=16):
    return lambda: (torch.randint(0, TOKENS, (rows, columns)),)


def _small(**more):
    return {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": TOKENS} | more


def _t5_inputs():
    return torch.randint(0, TOKENS, (2, 16)), torch.ones(2, 16, dtype=torch.long), torch.randint(0, TOKENS, (2, 8))


def _whisper_inputs():
    return torch.randn(2, 16, 60), None, torch.randint(0, 100, (2, 8))


MODELS = {
    "resnet18": _vision("resnet18", 64),
    # Normalised over a batch, its last layers must see more than a few numbers a channel, or every rounding error is a large one.
    "mobilenet_v3_large": _vision("mobilenet_v3_large", 96, batch=4),
    "vit_b_16": _vision("vit_b_16", 32, image_size=32),
    "swin_t": _vision("swin_t", 64),
    "convnext_tiny": _vision("convnext_tiny", 64),
    "gpt2": _text("GPT2LMHeadModel", "GPT2Config", _ids(), n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=TOKENS, use_cache=False, bos_token_id=1, eos_token_id=2),
    "bert": _text("BertModel", "BertConfig", _ids(), **_small(max_position_embeddings=64)),
    "llama": _text("LlamaForCausalLM", "LlamaConfig", _ids(), **_small(num_key_value_heads=2, use_cache=False, max_position_embeddings=64)),
    "t5": _text("T5ForConditionalGeneration", "T5Config", _t5_inputs, d_model=32, d_ff=64, d_kv=8, num_layers=2, num_heads=4, vocab_size=TOKENS, use_cache=False),
    "mistral": _text("MistralForCausalLM", "MistralConfig", _ids(), **_small(num_key_value_heads=2, use_cache=False, sliding_window=8, max_position_embeddings=64)),
    "whisper": _text(
        "WhisperForConditionalGeneration", "WhisperConfig", _whisper_inputs, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=TOKENS, num_mel_bins=16, max_source_positions=30, max_target_positions=20,
        use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    ),
    "mamba": _text("MambaForCausalLM", "MambaConfig", _ids(), hidden_size=32, num_hidden_layers=2, state_size=8, vocab_size=TOKENS, use_cache=False),
}
WAYS = ("eval", "eval bfloat16", "backward", "train")


def build(name, way, seed=0):
    """The module and its inputs; `way` is a word of WAYS."""
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, inputs = MODELS[name]()
    if way == "eval bfloat16":
        module = module.bfloat16()
        inputs = tuple(x.bfloat16() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)
    module.train(way == "train")
    return module, inputs


def floats(out):
    """The float tensors of an output, whatever class transformers wraps them in."""
    from torch.utils import _pytree as pytree

    if hasattr(out, "to_tuple"):
        out = out.to_tuple()
    return [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and t.is_floating_point()]


def step(module, call, inputs, way, double=False):
    """One run: outputs, then the gradient of every parameter and the buffers (running statistics) as they are after it."""
    torch.manual_seed(7)
    module.zero_grad(set_to_none=True)
    if way.startswith("eval"):
        with torch.no_grad():
            return {"out": floats(call(*inputs))}
    outs = floats(call(*inputs))
    outs = [t for t in outs if t.requires_grad]
    weights = [verdict.weight_like(t.float() if double else t, i).to(t.dtype) for i, t in enumerate(outs)]
    torch.autograd.backward(outs, weights)
    grads = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return {"out": [t.detach() for t in outs], "grad": grads, "buffer": {n: b.clone() for n, b in module.named_buffers()}}


def count(name, way, door):
    """The counts of the graphs of one model in one way, which is run and compared with nothing."""
    module, inputs = build(name, way)
    torch._dynamo.reset()
    door.take_counts()
    with door.same_numbers():
        step(module, door.compile(module, dynamic=False), inputs, way)
    return door.take_counts()


def judge(name, way, door):
    """Problems of one model in one way, and the counts of its graphs."""
    import copy

    import agree

    module, inputs = build(name, way)
    state = copy.deepcopy(module.state_dict())
    eager = step(module, module, inputs, way)
    module.load_state_dict(state)

    def reference():
        wide = copy.deepcopy(module).double()
        wide.load_state_dict(state)
        args = tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)
        with verdict.InDouble():
            return agree.Run(step(wide, wide, args, way, double=True))

    torch._dynamo.reset()
    start = time.perf_counter()
    with door.same_numbers():
        compiled = door.compile(module, dynamic=False)
        got = step(module, compiled, inputs, way)
    first = time.perf_counter() - start
    found = agree.problems(agree.Run(got), agree.Run(eager), reference)
    return found, door.take_counts(), first


def serve(job, say):
    warnings.simplefilter("ignore")
    door = doors.door(job["backend"])
    for i in range(job.get("from", 0), 1):
        say({"at": i})
        try:
            if job.get("compare", True):
                found, c, first = judge(job["model"], job["way"], door)
            else:
                found, c, first = [], count(job["model"], job["way"], door), 0.0
        except Exception as error:
            found, c, first = [f"raises {verdict._one_line(error)}"], door.take_counts(), 0.0
        say({"sample": i, "verdict": "wrong" if found else "agree", "what": "; ".join(found[:6]), "kernels": c.kernels, "interpreted": c.interpreted, "external": c.external, "reasons": c.reasons, "first": round(first, 2)})
    return {}


def arguments(parser: argparse.ArgumentParser):
    parser.add_argument("--backend", default="oxyfuel", help="oxyfuel, nop or torch")
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--patience", type=float, default=600)
    parser.add_argument("--bless", action="store_true", help="write the counts")
    parser.add_argument("--record", action="store_true", help="write the outcome of a whole run to bench/record/judge.json and docs/torch.md")


def main(args):
    jobs = [{"model": m, "way": w, "backend": args.backend} for m in args.model or MODELS for w in args.way or WAYS]
    wrong, table, reasons, verdicts = 0, {}, {}, {}

    def see(job, found, last):
        nonlocal wrong
        s = found[-1] if found else {"verdict": "wrong", "what": last.get("error", "the worker died")}
        wrong += s["verdict"] != "agree"
        verdicts[job["model"], job["way"]] = s["verdict"]
        external = s.get("external", {})
        name = f"{job['model']} {job['way']}"
        row = table[name] = counts.row(1, s.get("kernels", 0), s.get("interpreted", 0), external)
        reasons.update(s.get("reasons", {}))
        most = ", ".join(f"{t.removeprefix('aten.')} {n}" for t, n in sorted(external.items(), key=lambda x: -x[1])[:6])
        print(f"{name:<30} {s['verdict']:<6} kernels {row['kernels']:>4}  external {row['external']:>4}  interpreted {row['interpreted']:>3}  first call {s.get('first', 0):>6} s  {most}", flush=True)
        if s["verdict"] != "agree":
            print(f"  {s['what'][:1500]}", flush=True)

    pool.Pool("models", args.workers, args.patience, see).run(jobs)
    whole = not (args.model or args.way)
    if args.record:
        if not whole:
            raise SystemExit("only a whole run is recorded: every model in every way")
        record.write("models", record.models(table, verdicts))
    if args.bless:
        counts.write("models", table, reasons, partial=not whole)
        return 1 if wrong else 0
    return 0 if not wrong and counts.check("models", table, whole) else 1
