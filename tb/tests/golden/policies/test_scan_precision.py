"""Why the VPE has expm1: what its functions of BF16 operands do to a scan of 2,048 tokens, against FP32."""

import numpy as np

from openvrex.golden.arithmetic import elementwise
from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.arithmetic.state_space import HistoryBranch, StateSpaceParams, causal_conv1d, silu, softplus

TOKENS, WIDTH = 2048, 64


def function(f, x: np.ndarray) -> np.ndarray:
    """A function of the VPE: rounds its operand to BF16, and gives BF16."""
    return f(to_bf16(x)).astype(np.float32)


def scan(dt: np.ndarray, x: np.ndarray, b: np.ndarray, c: np.ndarray, a: np.ndarray, how: str):
    """Outputs and the state after each 256 tokens, with e^(dt A) - 1 of FP32, of the VPE, or its e^(dt A) less 1."""
    h, y, states = np.zeros_like(a), np.empty_like(x), []
    for t in range(len(x)):
        power = dt[t][:, None] * a
        if how == "exp":
            h = h * function(elementwise.exp, power)
        else:
            h = h + h * (np.expm1(power) if how == "exact" else function(elementwise.expm1, power))
        h = h + (dt[t] * x[t])[:, None] * b[t]
        y[t] = h @ c[t]
        states += [h.copy()] if t % 256 == 255 else []
    return y, np.stack(states)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Root mean square of the error, relative to that of the exact values."""
    return float(np.sqrt(((got - want) ** 2).mean() / (want**2).mean()))


def test_a_state_needs_expm1(record_property):
    """e^(dt A) is near 1, where BF16 numbers are 2^-8 and 2^-7 apart: its error is a third of the state. That of expm1
    and softplus is below 2^-7, their own.
    """
    branch, rng = HistoryBranch(StateSpaceParams(), WIDTH, WIDTH), np.random.default_rng(0)
    # A mean that stays, as hidden states have, makes slow states grow.
    x = 0.5 * rng.standard_normal((TOKENS, WIDTH)) + 0.87 * rng.standard_normal(WIDTH)
    cu, n, rank = np.array([0, TOKENS]), branch.params.state, branch.rank
    x = x.astype(np.float32) @ branch.in_proj[:, : branch.inner]
    x = silu(causal_conv1d(x, branch.conv_weight, branch.conv_bias, cu, branch.begin().conv)[0])
    v, b, c = np.split(x @ branch.x_proj, [rank, rank + n], axis=1)
    v = v @ branch.dt_proj + branch.dt_bias
    want, states = scan(softplus(v), x, b, c, branch.a, "exact")
    errors = {}
    for name, dt, how in (
        ("expm1", softplus(v), "expm1"),
        ("softplus", function(elementwise.softplus, v), "exact"),
        ("both", function(elementwise.softplus, v), "expm1"),
        ("exp", softplus(v), "exp"),
    ):
        y, h = scan(dt, x, b, c, branch.a, how)
        errors[name] = error(y, want), error(h, states)
        record_property(name, f"output {errors[name][0]:.2%}, state {errors[name][1]:.2%}")
    assert max(errors["both"]) < 2.0**-7
    assert errors["exp"][1] > 20 * errors["both"][1]
