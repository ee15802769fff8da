"""OpenVRex: a generator of KV-cache retrieval hardware, its golden models, its verification and its simulator.

An installed package has all its folders here. A checkout has them beside this one, where people look for them.
"""

from pathlib import Path

if not Path(__file__).with_name("golden").is_dir():
    __path__.append(str(Path(__file__).resolve().parents[1]))
