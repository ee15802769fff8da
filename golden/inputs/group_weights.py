"""Matrices of 4-bit weights in GPTQ and AWQ checkpoints, read as `PackedMatrix`: what the core multiplies by.

Both formats store a linear layer of `inputs` and `outputs` as tensors behind one name. A weight is d (q - z), with one
scale d and one zero point z for a group of inputs. Int32 words hold eight numbers of 4 bits, number i in bits 4 i up:

=========  ==================================================  ===================================================
tensor     GPTQ                                                AWQ, version gemm
=========  ==================================================  ===================================================
`qweight`  q, int32 [inputs / 8, outputs]: word r of a         q, int32 [inputs, outputs / 8]: word c of a row has
           column has inputs 8 r to 8 r + 7                    outputs 8 c + 0, 2, 4, 6, 1, 3, 5, 7
`qzeros`   int32 [groups, outputs / 8]: outputs 8 c to         z, in the order of `qweight`
           8 c + 7; z - 1 in format `gptq`, z in `gptq_v2`
`scales`   d, FP16 [groups, outputs]                           d, FP16 [groups, outputs]
`g_idx`    group of each input, int32 [inputs]; optional       none
=========  ==================================================  ===================================================

A z of 4 bits in format `gptq` is 1 to 16. Where all z are 8, as in symmetric checkpoints, the matrix has the rule
SCALE and memory holds no zero points.

Groups of 64 become two of 32 each, as LOAD knows no others.

The last group of GPTQ has fewer inputs than the others where they do not divide the inputs. AWQ has whole groups only.

Source: AutoGPTQ, GPTQModel, AutoAWQ and vLLM, which agree on this; their kernels are not used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.packed_weights import GROUPS, PackedMatrix, Packing, Rule
from openvrex.golden.function_params import check
from openvrex.golden.inputs.finite import check_weights

EACH = 8  # numbers of a word
ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # output of each number of a word of AWQ
MIDDLE = 8  # the zero point of SCALE
FORMATS = "gptq", "gptq_v2"
READ = 32, 64, 128  # groups that are read


@dataclass(frozen=True)
class GroupFormat:
    """How a checkpoint stores its linear layers.

    awq : AWQ, else GPTQ · group : inputs of a group · offset : what `qzeros` lacks
    """

    awq: bool
    group: int
    offset: int

    @classmethod
    def of(cls, config: Mapping[str, Any], where: str) -> "GroupFormat":
        """The format that a `quantization_config` names. Raises `ParamError` for one that cannot be read.

        where : what messages begin with
        """

        def must(*names: str, allowed: tuple[Any, ...], default: Any = None, reason: str = "") -> Any:
            name = next((one for one in names if one in config), names[0])
            value = config.get(name, default)
            value = value.lower() if isinstance(value, str) else value
            words = " or ".join(map(str, allowed))
            check(value in allowed, f"{where}: {name}", value, f"must be {words}{reason}")
            return value

        awq = must("quant_method", allowed=("gptq", "awq"), reason=": take such a folder, or BF16 weights") == "awq"
        must("bits", "w_bit", allowed=(4,), reason=", as LOAD expands: quantise again")
        reason = ", groups that LOAD expands or that are some of these: quantise again"
        group = must("group_size", "q_group_size", allowed=READ, reason=reason)
        if awq:
            must("version", allowed=("gemm",), default="gemm", reason=": save the model with version gemm")
            return cls(awq, group, 0)
        must("pack_dtype", allowed=("int32",), default="int32", reason=": save the model with int32 words")
        kind = must("checkpoint_format", "format", allowed=FORMATS, default=FORMATS[0], reason=": save it as such")
        return cls(awq, group, 1 - FORMATS.index(kind))

    def matrix(
        self, tensors: Mapping[str, np.ndarray], name: str, where: str, inputs: int, outputs: int
    ) -> PackedMatrix:
        """The weights of the linear layer `name`. Raises `ParamError` for tensors that do not hold them.

        where : what messages begin with
        """
        groups = -(-inputs // self.group)
        for what, n, unit in (("inputs", inputs, self.group if self.awq else EACH), ("outputs", outputs, EACH)):
            check(n % unit == 0, f"{where}: {name}: {what}", n, f"must be a multiple of {unit}, as the format has it")
        shape = (inputs, outputs // EACH) if self.awq else (inputs // EACH, outputs)

        def read(part: str, *want: int, integers: bool = True) -> np.ndarray:
            full = f"{name}.{part}"
            check(full in tensors, f"{where}: {full}", None, "must be in the checkpoint: download the folder again")
            x = tensors[full]
            reason = (
                f"must be {list(want)}, for {inputs} inputs and {outputs} outputs of 4 bits in groups of {self.group}"
            )
            check(x.shape == want, f"{where}: {full}: shape", list(x.shape), reason)
            fits = x.dtype == np.int32 if integers else x.dtype.kind != "i"
            check(fits, f"{where}: {full}: type", str(x.dtype), f"must be {'int32' if integers else 'float16'}")
            return x

        q = self._numbers(read("qweight", *shape), rows=not self.awq)
        z = self._numbers(read("qzeros", groups, outputs // EACH), rows=False) + np.uint16(self.offset)
        d = check_weights(where, f"{name}.scales", read("scales", groups, outputs, integers=False))
        half = d.astype(np.float16)
        odd = int((half.astype(np.float32) != d.astype(np.float32)).sum())
        check(
            odd == 0, f"{where}: {name}.scales", f"{odd} of {d.size}", "must be FP16 numbers: save the scales as FP16"
        )
        if f"{name}.g_idx" in tensors:
            self._check_order(read("g_idx", inputs), f"{where}: {name}.g_idx")
        scales = half.view(np.uint16)[..., None]
        rule = Rule.SCALE if (z == MIDDLE).all() else Rule.ZERO
        held = scales if rule == Rule.SCALE else np.concatenate([scales, z[..., None]], axis=-1)
        group = self.group
        if group not in GROUPS:  # two groups of 32 with the same scale
            group, held = GROUPS[0], held.repeat(group // GROUPS[0], axis=0)[: -(-inputs // GROUPS[0])]
        return PackedMatrix(q.astype(np.uint8), held, Packing(rule, group))

    def _numbers(self, words: np.ndarray, rows: bool) -> np.ndarray:
        """The numbers of words [a, b], uint16: [8 a, b] if words hold those of `rows`, else [a, 8 b]."""
        a, b = words.shape
        each = (words.view(np.uint32)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).astype(np.uint16)
        if rows:
            return each.swapaxes(1, 2).reshape(EACH * a, b)
        if self.awq:
            each = each[..., np.argsort(ORDER)]
        return each.reshape(a, EACH * b)

    def _check_order(self, of: np.ndarray, name: str) -> None:
        """Raise `ParamError` unless input i is of group i // group."""
        wrong = np.flatnonzero(of != np.arange(len(of)) // self.group)
        if len(wrong):
            i = int(wrong[0])
            reason = f"must be {i // self.group}, as groups lie in order: quantise again with desc_act=false"
            check(False, f"{name}[{i}]", int(of[i]), reason)
