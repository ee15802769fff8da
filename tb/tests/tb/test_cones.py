"""Proof cones: a register counts if logic leads from it to a claim, through other registers too."""

import json

import pytest

from openvrex.hdl.emit import ALL
from openvrex.scripts.blocks import campaign_results
from openvrex.tb.formal import cones
from openvrex.tb.formal.proofs import EQUAL, Goal, goals
from tb.tests.commands import vrex


def cell(kind: str, out: str = "", **pins: list[int]) -> dict:
    ways = {pin: "output" if pin == out else "input" for pin in pins}
    return {"type": kind, "connections": pins, "port_directions": ways}


NETLIST = {
    "cells": {
        "claim": cell("$check", A=[1], EN=[2], ARGS=[]),
        "and": cell("$and", "Y", A=[3], B=[4], Y=[1]),
        "near": cell("$sdff", "Q", CLK=[9], SRST=[8], D=[5], Q=[3]),
        "far": cell("$dffe", "Q", CLK=[9], EN=[6], D=[5], Q=[5]),
        "enable": cell("$dff", "Q", CLK=[9], D=[10], Q=[6]),
        "beside": cell("$dff", "Q", CLK=[9], D=[3, 11], Q=[7, 12]),
    },
    "netnames": {
        name: {"bits": bits, "hide_name": 0}
        for name, bits in {
            "unit.near": [3],
            "unit.far": [5],
            "unit.enable": [6],
            "unit.beside": [7, 12],
            "unit.wire": [4],
            "unit.perf_rows": [12],
            "monitor": [10],
        }.items()
    },
}


def test_a_cone_goes_through_registers_and_their_enables():
    inside, every = cones._of_netlist(NETLIST)
    assert inside == {"near", "far", "enable"}
    assert every == inside | {"beside"}


def test_an_equal_unit_is_all_in_the_cone_and_a_part_is_not():
    by_claim = {g.claim: g for g in goals() if g.unit == "cluster_set" and isinstance(g, Goal)}
    inside, every = cones.cone(by_claim[EQUAL])
    assert inside == every
    assert len(every) > 10
    inside, every = cones.cone(by_claim["an offer stays until taken"])
    assert inside < every


def test_counts_are_recorded(tmp_path, monkeypatch):
    path = tmp_path / "blocks.json"
    path.write_text(json.dumps({"commands": {}, "figures": {}}))
    monkeypatch.setattr(campaign_results, "RECORD", path)
    run = vrex("dev", "prove", "cluster_set", "--cones", "--record", "--json")
    (found,) = json.loads(run.stdout).values()
    assert found["inside"] == found["registers"] > 10
    facts = campaign_results.measured_at() | {"verilog": campaign_results.hardware("cluster_set")}
    assert campaign_results.load() == {"cluster_set": {"cones": found | facts}}


@pytest.mark.parametrize("unit", ALL)
def test_every_unit_has_registers_to_look_at(unit):
    """Names of registers are found behind each monitor: none is empty by mistake."""
    own = [g for g in goals() if g.unit == unit and isinstance(g, Goal)]
    assert not own or cones.cone(own[0])[1]
