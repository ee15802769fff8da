"""Writes a C header that tells where the items of tables lie in memory, for software that reads or writes them."""

from pathlib import Path

from openvrex.golden.arithmetic.secded import check_bits, columns
from openvrex.golden.retrieval.table_layout import Item, TableLayout

READ = (Item.LEVEL, Item.PLACE, Item.ROW, Item.NEXT, Item.POOL)  # items of which the driver reads the fields


def table_header(layout: TableLayout, unit: str, path: Path, kv4_group: int = 0) -> None:
    """Writes the header of a unit: bytes of a table and of the pool; of each item its place, bytes and bits.

    Names are the same for all parameters. Items that the driver reads also have their fields, and the checks in which
    each bit takes part (`golden.arithmetic.secded`); parity is one check of all bits. A packed
    home has its group (`kvmu.kv4_group`).
    """
    start = f"{unit}_tables".upper()
    lines = [
        f"/* Where the items of tables of a {unit} lie in memory.",
        " *",
        " * The pool begins at table_base, the table of context c at table_base + POOL_BYTES + c * TABLE_BYTES.",
        " * OFFSET is the first byte of item 0 in the table, of NEXT and POOL in the pool. BYTES is the distance of",
        " * two items. BITS counts an item's data, lowest bit first; CHECKS check bits follow. Register",
        " * identity.tables has CHECKSUM.",
        " */",
        f"#ifndef {start}_H",
        f"#define {start}_H",
        "",
        f"#define {start}__CHECKSUM 0x{layout.checksum:08x}u",
        f"#define {start}__POOL_BYTES {layout.pool_bytes}u",
        f"#define {start}__TABLE_BYTES {layout.table_bytes}u",
        f"#define {start}__RECENT {layout.recent}u /* slots of a ring */",
        f"#define {start}__KEPT {layout.kept}u /* places of kept blocks of a context; behind RING an item for each */",
        f"#define {start}__BLOCK_SLOTS {layout.block_slots}u /* entries of a block */",
        f"#define {start}__CORRECTS {int(layout.protect == 'secded')} /* check bits can correct a wrong bit */",
    ]
    if kv4_group:
        lines += [f"#define {start}__KV4_GROUP {kv4_group}u /* numbers of a group; entries at home have 4 bits each */"]
    for item in Item:
        name, bits = f"{start}__{item.name}", layout.bits(item)
        lines += [
            "",
            f"#define {name}__OFFSET {layout.offsets[item]}u",
            f"#define {name}__BYTES {layout.bytes(item)}u",
            f"#define {name}__BITS {bits}u",
            f"#define {name}__CHECKS {check_bits(bits, layout.protect)}u",
        ]
        if item in READ:
            checks = {"none": [0] * bits, "parity": [1] * bits, "secded": columns(bits)}[layout.protect]
            lines += [f"#define {name}__COLUMNS {{ \\"]
            lines += [
                f"    {', '.join(map(str, checks[i : i + 24]))}{',' * (i + 24 < bits)} \\" for i in range(0, bits, 24)
            ]
            lines += ["}"]
            at = 0
            for field, width in layout.fields(item).items():
                lines += [f"#define {name}__{field.upper()}_bp {at}", f"#define {name}__{field.upper()}_bw {width}"]
                at += width
    path.write_text("\n".join([*lines, "", "#endif", ""]))
