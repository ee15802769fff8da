"""All retrieval policies by name, with their parameters: those of a core, and those that have no hardware."""

from openvrex.golden.function_params import check
from openvrex.golden.policies import full_streaming
from openvrex.golden.policies.registry import POLICIES as ON_CORE
from openvrex.golden.policies.registry import Entry
from openvrex.papers.policies import compressed_cache, infinigen, oaken, page_indexes, rekv, signature_policy

# In the order of tables.
POLICIES = {
    "full": ON_CORE["full"],
    "flexgen": Entry(full_streaming.Full, full_streaming.FullParams(offload=True)),
    "infinigen": Entry(infinigen.InfiniGen, infinigen.InfiniGenParams()),
    "infinigenp": Entry(infinigen.InfiniGen, infinigen.InfiniGenParams(frame_ratio=0.508)),
    "rekv": Entry(rekv.ReKV, rekv.ReKVParams()),
    "streamingllm": ON_CORE["streamingllm"],
    "oaken": Entry(oaken.Oaken, oaken.OakenParams()),
    **{name: ON_CORE[name] for name in ("codecsight", "mosaic", "mosaic-eager")},
    "livevlm": Entry(compressed_cache.LiveVlm, compressed_cache.LiveVlmParams()),
    "streammem": Entry(compressed_cache.StreamMem, compressed_cache.StreamMemParams()),
    "hybrid": ON_CORE["hybrid"],
    "signatures": Entry(signature_policy.SignaturePolicy, signature_policy.SignatureParams()),
    "pages": ON_CORE["pages"],
    "pages-by": Entry(page_indexes.IndexedPages, page_indexes.IndexedPagesParams()),
}
POLICIES |= {name: found for name, found in ON_CORE.items() if name not in POLICIES}
ALL = tuple(
    name for name in POLICIES if name not in ("resv-equations", "resv-exact", "resv-first")
)  # for `--policy all`


def entry(name: str) -> Entry:
    """The entry of a name. Raises `ParamError` with the valid names for an unknown one."""
    check(name in POLICIES, "policy", name, f"must be one of {', '.join(POLICIES)}")
    return POLICIES[name]
