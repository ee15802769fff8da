"""Writes the power domains of a block as UPF (IEEE 1801)."""

from openvrex.hdl.emit import Emitted
from openvrex.ip.shell import top_module

# Domains by unit: name, and instances below the top module. What is in none of them belongs to the registers' domain.
DOMAINS = {
    "core_ip": {"CORE": ("unit/core",), "DRE": ("unit/core/dre", "unit/core/retriever")},
    "dre_ip": {"DRE": ("unit/engine",)},
    "motion_mask_ip": {"MASK": ("unit/engine",)},
}
_HEAD = """# Power intent, UPF 2.1 (IEEE 1801-2013). No power tool has read it: a Tcl interpreter did.
# AON: registers and top module, always on.{nested}
# There are no switches and no retention inside: switch the supplies outside.
# Off: let the program or command end, wait until status.bus is 0, raise the domain's iso_*, cut its supply.
# Software then leaves alone what reaches into the domain: commands, and a core's program and R registers, whose writes
# would wait for ever. On: supply, aresetn low for a cycle, lower iso_*, write the configuration.
upf_version 2.1
set_design_top {top}
create_supply_port VSS -direction in
create_supply_net VSS
connect_supply_net VSS -ports VSS
"""
_SUPPLY = """create_supply_port {net} -direction in
create_supply_net {net}
connect_supply_net {net} -ports {net}
create_supply_set SS_{name} -function {{power {net}}} -function {{ground VSS}}
create_power_domain PD_{name} -elements {{{elements}}} -supply {{primary SS_{name}}}
"""
_ISOLATION = """create_logic_port {signal} -direction in
create_logic_net {signal}
connect_logic_net {signal} -ports {signal}
set_isolation {signal} -domain PD_{name} -applies_to outputs -clamp_value 0 -isolation_supply_set SS_AON \\
  -isolation_signal {signal} -isolation_sense high -location parent
"""


def upf(emitted: Emitted) -> str:
    """Text of the UPF: a supply for each domain, clamps to 0 at the outputs of one that is off, the states allowed."""
    domains = DOMAINS[emitted.manifest["unit"]]
    nested = " DRE lies inside of CORE and is off whenever CORE is." if len(domains) > 1 else ""
    text = _HEAD.format(top=top_module(emitted), nested=nested)
    for name, elements in {"AON": (".",), **domains}.items():
        text += _SUPPLY.format(name=name, net=f"VDD_{name}", elements=" ".join(elements))
    for name in domains:
        text += _ISOLATION.format(name=name, signal=f"iso_{name.lower()}")
    nets = ["VDD_AON", *(f"VDD_{name}" for name in domains)]
    text += "set volts 0.8 ;# your library's\n"
    text += "add_port_state VDD_AON -state [list ON $volts]\nadd_port_state VSS -state {ON 0.0}\n"
    text += "".join(f"add_port_state {net} -state [list ON $volts] -state {{OFF off}}\n" for net in nets[1:])
    text += f"create_pst states -supplies {{{' '.join(nets)} VSS}}\n"
    # Domains stand in the order of nesting: one after another goes off from the end.
    for on in range(len(domains), -1, -1):
        states = ["ON"] * (1 + on) + ["OFF"] * (len(domains) - on)
        label = "_".join([*list(domains)[on:], "OFF"]) if on < len(domains) else "ALL_ON"
        text += f"add_pst_state {label} -pst states -state {{{' '.join(states)} ON}}\n"
    return text
