"""Every command given what it cannot use: exit code 2, one line that names it, nothing written, no traceback."""

import hashlib
import json
import os
import re
import shlex
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from openvrex.hdl import generated
from openvrex.hdl.emit import emit, params_of
from openvrex.hdl.params import PRESETS
from openvrex.scripts.check.verify_command import FIXTURE
from openvrex.scripts.main import app
from openvrex.tb.library import runner
from tb.tests.golden.inputs.checkpoints import CONFIG, QUANTIZATION

# What is typed in a folder that has `file`, `folder/`, a trace, and files of other kinds -> what the line says.
TYPED = {
    # The command line itself.
    "generat hcu": "No such command 'generat'",
    "--nope": "No such option: --nope",
    "generate --nope": "No such option: --nope",
    "generate hcu wtu": "unexpected extra argument",
    "generate hcu -p": "'-p' requires an argument",
    "generate hcu -p n_w": "must look like name=value",
    "generate hcu -p =3": "must look like name=value",
    "trace world": "--output",
    "asm": "Missing argument",
    "papers list --nope": "No such option",
    "presets --save my.txt": "must end in .toml",
    "papers readings nowhere": "nowhere: cannot be read",
    # Units, presets, parameters.
    "generate hcu --language vhdl": "--language=vhdl: must be one of 'verilog2005', 'systemverilog'",
    "generate hcux": "unit='hcux': must be one of hcu, wtu",
    "generate hcu --preset big": "preset='big': must be one of tiny, small, core",
    "generate hcu --preset ''": "preset='': must be one of",
    "generate hcu -p n_w=3": "hcu.n_w=3: must divide n_hp = 32",
    "generate hcu -p n_w=inf": "n_w='inf': must be",
    "generate hcu -p n_w=8.0": "n_w='8.0': must be",
    "generate hcu -p clusters=2000000": "clusters=2000000: must be 1 to 1048576",
    "generate hcu -p protect=x": "protect='x': must be one of",
    "generate hcu -p n_q=3": "parameter='n_q': unknown; valid names:",
    "generate hcu -p wtu.n_w=8": "parameter='wtu.n_w': hcu has none of this name; it has hcu.n_h, ",
    "generate hcu -p wtu.nw=1": "parameter='wtu.nw': unknown; valid names: wtu.n_w, wtu.",
    "size area nothing": "unit='nothing': must be one of hcu",
    "size area hcu --preset big": "preset='big': must be one of tiny, small, core",
    "size area hcu -p n_w=3": "hcu.n_w=3: must divide",
    "size area hcu --effort lazy": "effort='lazy': must be one of area, speed",
    "size table3 --node 15": "--node=15: must be one of 7, 14, 16, 28, 45, 130",
    "size timing nothing": "unit='nothing': must be one of",
    "size timing system": "motion_mask_ip, registers, core, core_joined; others are measured by these parts of them",
    "size timing --target 500": "target=500: must be more than 0 ps, and needs effort speed",
    "size timing hcu --node 15": "--node=15: must be one of 7, 14, 16, 28, 45, 130",
    "size timing hcu --macro nowhere.lib": "nowhere.lib: cannot read the Liberty file",
    "size fpga hcu --device ice": "--device='ice'",
    "size layout nothing": "unit='nothing': must be one of",
    "size scan nothing": "unit='nothing': must be one of",
    "size scan hcu -p n_w=3": "hcu.n_w=3: must divide",
    "size scan hcu --liberty nowhere": "nowhere: cannot read the Liberty file",
    "size layout hcu -p n_w=3": "hcu.n_w=3: must divide",
    "size layout hcu --density 2": "density=2: must be 0.1 to 0.9",
    "size layout hcu --liberty nowhere": "nowhere: cannot read the Liberty file",
    "size fpga core": "unit='core': must be one of",
    "size power nothing": "unit='nothing': must be one of hcu",
    "size power hcu --node 15": "node=15: must be one of 7",
    "ip nothing": "unit='nothing': must be one of",
    "ip dre_ip -p n_w=3": "n_w=3",
    "verify nothing": "unit='nothing': must be one of",
    "verify hcu --preset big": "preset='big'",
    "verify --status --signoff": "--status --signoff=True: must not stand together: give one of them",
    "verify hcu -p n_w=3": "hcu.n_w=3",
    "simulate dre trace.safetensors --preset big": "preset='big'",
    "dev prove nothing": "unit='nothing': must be one of hcu",
    "dev prove hcu --record": "--record=True: needs --cones",
    "dev prove hcu --cones --equal": "--cones --equal=True: must not stand together",
    "dev mutate nothing": "unit='nothing': must be one of cluster_set",
    "dev stress nothing": "unit='nothing': must be one of hcu",
    "dev nightly nothing": "part='nothing'",
    "dev coverage nothing": "unit='nothing': must be one of cluster_set",
    "dev bench nothing": "unit='nothing': must be one of hcu",
    "dev bench --preset big": "preset='big'",
    "simulate layer --preset big": "preset='big'",
    "simulate prediction -p n_w=3": "n_w=3",
    "run resv --trace trace.safetensors --preset big": "preset='big': must be one of",
    "papers demo --preset big": "preset='big'",
    "report --preset big": "preset='big'",
    "asm file --preset big": "preset='big'",
    "sweep N_HCU=1 --preset big": "preset='big'",
    "sweep nothing=1": "nothing",
    "sweep N_HCU": "N_HCU",
    "sweep N_HCU=": "N_HCU",
    "sweep N_HCU=8..1": "N_HCU='8..1': a range from 8 to 1 holds nothing; write 1..8",
    "sweep N_HCU=1,x": "N_HCU",
    "sweep N_HCU=1 --objective joy": "objective='joy': must be of cycles, bytes",
    "sweep N_HCU=1 --cluster pbs": "--cluster=pbs: must be one of 'local', 'slurm', 'lsf'",
    "sweep N_HCU=1 --effort lazy": "effort='lazy'",
    "sweep N_HCU=1 --node 15": "node=15: must be one of",
    "simulate nothing": "No such command 'nothing'",
    "simulate limits --platform agx": "platform='agx': must be one of edge, server",
    "simulate limits --batch 0": "--batch=0: must be at least 1",
    "simulate engines --platform agx": "platform='agx'",
    "simulate frames --platform agx": "platform='agx'",
    "simulate machines --machine H200": "machine='H200': must be one of V-Rex8, V-Rex48",
    "simulate machines --streams 0": "--streams=0: must be at least 1",
    "simulate gpu -o .": "must be a file, and is a folder",
    "simulate gpu --cpu": "No such option: --cpu",
    "dev prove feeder --equal": "unit='feeder': has no specification yet",
    "simulate memories --cache 1": "No such option: --cache",
    "simulate pass --platform x": "platform='x': must be one of edge, kvpu, server, agx, a100",
    "simulate pass --platform h100 --policy oaken": "policy='oaken': was not measured on H100",
    "simulate pass --platform h100 -p clusters=3": "has no preset and no parameters but -p home_bits=4",
    "simulate pass --platform h100 --policy mosaic": "must be a V-Rex for mosaic",
    "simulate pass --platform h100 --policy pages --select world": "has no effect on pages",
    "simulate pass --platform h100 --model smollm2-135m --policy resident": "was not measured on H100",
    "simulate pass --platform h100 --cache 1048576 --policy resident": "of 80 GiB of device memory on h100",
    "simulate pass --platform none.json": "none.json: No such file",
    "simulate pass --policy x": "policy='x': must be one of",
    "simulate pass --stage x": "stage='x': must be one of frame, question, token",
    "simulate pass --tokens 64": "tokens=64: is for a question: --stage question",
    "simulate pass --platform h100 --policy pages --stage question": "stage='question': must be frame or token",
    "simulate pass --model x": "model='x'",
    "simulate pass --policy full --stage question": "stage='question'",
    "simulate pass --policy full --select world": "select='world'",
    "simulate pass --policy full --platform agx": "platform='agx'",
    "simulate pass --policy full --batch 2": "batch=2",
    "simulate pass --video world": "--video='world': needs --policy codecsight: leave it out",
    "simulate layer --policy full --gop 4": "--gop=4: needs --policy codecsight",
    "simulate policies --policy resv --at-once 4": "--at-once=4: needs --policy full or streamingllm or codecsight",
    "simulate policies --policy full --select world": "select='world': needs --policy resv",
    "simulate pass --policy streamingllm -p streamingllm.x=1": "parameter='streamingllm.x'",
    "simulate pass --policy streamingllm -p hybrid.recent_blocks=1": "hybrid",
    "simulate layer --policy x": "policy='x'",
    "simulate layer --policy pages --share 0.5": "--share=0.5: has no effect on pages, whose budget is pages.budget",
    "simulate layer --policy pages --preset tiny": "mean=256: must be at most recent = 16",
    "simulate pass --policy pages --cache 200000": "clusters=16384: must be at least 24994",
    "simulate pass --policy pages -p pages.page=3": "page=3: must be a power of two",
    "simulate pass --home x": "home='x': must be one of link, device",
    "simulate pass --home device --platform agx": "home='device': must be link on agx",
    "simulate layer --policy full --share 0.5": "--share=0.5",
    "simulate policies --policy rekv": "policy='rekv'",
    "simulate pass --policy mosaic": "cores=8: must be 1 for mosaic",
    "simulate pass --policy mosaic --preset core": "slots=13312: must be at most 4096",
    "simulate pass --policy mosaic --preset core -p mosaic.arithmetic=float": "mosaic.arithmetic='float'",
    "simulate layer --policy mosaic -p mosaic.prefetch=input": "mosaic.prefetch='input'",
    "simulate layer --policy mosaic --share 0.5": "--share=0.5: has no effect on mosaic, whose share is mosaic.ratio",
    "simulate policies --policy full --batch 2": "No such option: --batch",
    "papers policies --batch 0": "batch=0",
    "papers policies --model smollm2-135m": "No such option: --model",
    "simulate policies --policy resv -p resv.resv.th_hd=3": "-p",
    "simulate pass --select x": "select='x': must be table2",
    "simulate pass --select world:x": "select='world': has records of resv, resv-buckets, pages: take one",
    "simulate pass --policy rekv --select world": "select='world': has records of resv, resv-buckets",
    "simulate pass --policy rekv --select world:resv": "select='world:resv': names another policy than rekv",
    "simulate pass --policy resv --cache 10000000": "cache=10000000: needs 305 of 32 GiB of device memory on edge",
    "simulate pass --policy flexgen --select world": "select='world': has no effect on flexgen",
    "simulate layer --policy full --select world": "--select='world': has no effect on full",
    "simulate selection": "Missing argument",
    "papers evaluate --trace x": "trace='x': must be one of world",
    "papers recall poem": "task='poem': must be one of passkey, keys, lookup, repeat",
    "papers recall --seeds 0": "--seeds=0: must be at least 1",
    "papers recall --tokens 100": "tokens=100: must be at least 256",
    "papers recall --tokens 8192": "tokens=8192: must be at most",
    "papers recall --tokens 32768 --model gemma3": "tokens=32768: must be at most 32640: gemma3 knows 32768",
    "papers recall --tokens long": "tokens='long': must be numbers",
    "papers recall --model bert": "model='bert': must be one of smollm2, gemma3",
    "papers recall --depth 2": "depth=2.0: must be 0 to 1",
    "papers recall --policy resv -p resv.resv.th_hd=99": "th_hd=99: must be 0 to n_hp + 1",
    "papers recall --policy best": "policy='best': must be one of",
    "papers recall -p resv.resv.th_hd": "must look like policy.name=value",
    "papers recall -p mosaic.ratio=1": "must start with a policy of --policy: full, pages",
    "papers recall --policy resv -p resv.resv.th_hd=3,99": "th_hd=99: must be 0 to n_hp + 1",
    "papers figure 7c": "figure='7c': must be one of 7a, 7b, visited, 19, mosaic, mosaic-budgets, mosaic-lengths",
    "papers figure 7a --seeds 3": "--seeds: has no effect on 7a: leave it out",
    "papers figure 20 --seeds 0": "--seeds=0: must be at least 1",
    "papers figure 20 --workers 0": "--workers=0: must be at least 1",
    "papers figure 20 --trace trace.safetensors": "--trace: has no effect on 20: leave it out",
    "papers figure 7a --trace nowhere": "nowhere: cannot be read",
    "papers figure 7a mosaic --clips world": "--clips: has no effect on 7a, mosaic: leave it out",
    "papers figure 7a --trace trace.safetensors --trace trace.safetensors": "each must have a name of its own",
    "papers figure 7a mosaic --trace bikes.safetensors": "must have values for mosaic",
    "papers figure 7a 19 --trace bikes.safetensors": "all tokens of the trace are recent",
    "papers figure mosaic --trace folder/wrong": "folder/wrong: damaged",
    "papers figure codecsight --clips nowhere.mp4": "nowhere.mp4: no such file",
    "papers figure codecsight --frames 80": "frames=80: must be more than 80",
    "papers figure": "Missing argument",
    "papers scenes nowhere world": "nowhere: no such file; give a path or one of the clips",
    "papers scenes world": "clips='world': must be at least two",
    "papers scenes world world": "clips='world,world': must be different clips",
    "papers scenes --frames 0": "--frames=0: must be at least 1",
    "papers scenes --frames 4": "frames=4: must be at least 14",
    "papers scenes --frames 300": "frames=300: give 12010 tokens, of which the decoder holds 8128",
    "papers scenes --frames 32": "frames=32: must be at most 31 of carphone at fps=8",
    "papers scenes --fps 0": "fps=0.0: must be above 0",
    "papers scenes --fps nan": "--fps=nan: must be a finite number",
    "papers scenes --tokens 3": "tokens=3: must be g*g",
    "papers scenes --seeds 0": "--seeds=0: must be at least 1",
    "papers scenes --policy x": "policy='x'",
    "papers scenes --policy best": "policy='best': must be one of",
    "papers scenes -p resv.resv.th_hd=99": "th_hd=99: must be 0 to n_hp + 1",
    "papers fleet --platform x": "x",
    "papers fleet --platform agx": "platform='agx': must be one of edge, server",
    "papers fleet --policy x": "policy='x': must be one of full, flexgen",
    "papers fleet --streams x": "streams='x': must be numbers separated by commas",
    "papers fleet --hours x": "hours='x'",
    "papers measure trace.safetensors --scope x": "scope='x'",
    "papers measure trace.safetensors --score-map x": "score_map='x'",
    "papers stream trace.safetensors --policy x": "policy='x': must be one of full, flexgen",
    "papers stream trace.safetensors -p x": "-p='x': must look like policy.name=value",
    "dev speed --policy x": "policy='x': must be one of",
    "dev speed --policy resv-buckets": "has no PyTorch implementation",
    "papers prune world -p rule=x": "rule='x'",
    # Numbers.
    "ip dre_ip --period 0": "period=0.0: must be more than 0",
    "ip dre_ip --period -1": "must be more than 0",
    "ip dre_ip --period inf": "--period=inf: must be a finite number",
    "ip dre_ip --period nan": "--period=nan: must be a finite number",
    "ip dre_ip --period x": "--period=x: must be a valid number",
    "size area hcu --macro-bits -1": "--macro-bits=-1: must be at least 0",
    "size area hcu --effort speed --target nan": "--target=nan",
    "size area hcu --effort speed --target 0": "target",
    "size power hcu --mhz 0": "mhz=0.0: must be more than 0",
    "size power hcu --mhz inf": "--mhz=inf: must be a finite number",
    "size power hcu --mhz nan": "--mhz=nan: must be a finite number",
    "size power hcu --cycles 1": "cycles=1: must be at least 2",
    "size power hcu --queries 0": "--queries=0: must be at least 1",
    "verify hcu --queries 0": "--queries=0: must be at least 1",
    "verify hcu --queries two": "--queries=two: must be a valid integer",
    "verify hcu --th-hd -1": "--th-hd=-1: must be at least 0",
    "verify hcu --th-hd 9999": "th_hd=9999: must be 0 to n_hp + 1 = 33",
    "verify hcu --preset tiny --th-hd 18": "th_hd=18: must be 0 to n_hp + 1 = 17",
    "verify hcu --ratio 1.5": "--ratio=1.5: must be 0 to 1",
    "verify hcu --ratio nan": "--ratio=nan: must be 0 to 1",
    "verify hcu --idle 1": "idle=1.0: must be",
    "verify hcu --stall nan": "stall=nan: must be",
    "verify hcu --seed -1": "--seed=-1: must be at least 0",
    "simulate dre trace.safetensors --queries 0": "--queries=0: must be at least 1",
    "simulate dre trace.safetensors --th-hd 9999": "th_hd=9999: must be 0 to",
    "simulate dre trace.safetensors --ratio -1": "--ratio=-1: must be 0 to 1",
    "papers measure trace.safetensors --th-hd 9999": "th_hd=9999: must be 0 to",
    "papers measure trace.safetensors --ratio nan": "ratio=nan: must be",
    "papers measure trace.safetensors --every 0": "every=0: must be",
    "papers measure trace.safetensors --recent 0": "recent=0: must be",
    "papers measure trace.safetensors --max-clusters 0": "max_clusters=0: must be",
    "sweep N_HCU=1 --search 0": "--search=0: must be at least 1",
    "sweep N_HCU=1 --search -1": "--search=-1: must be at least 1",
    "sweep N_HCU=1 --workers 0": "--workers=0: must be at least 1",
    "sweep N_HCU=1 --queries 0": "queries=0: must be at least 1",
    "sweep N_HCU=1 --th-hd 9999": "--th-hd=9999: must be 0 to 257",
    "sweep N_HCU=1 --ratio nan": "ratio",
    "sweep N_HCU=1 --effort speed --target nan": "target",
    "dev prove hcu --limit 0": "limit=0: must be at least 1",
    "dev mutate hcu -n 0": "n=0: must be at least 1",
    "dev mutate hcu --seed -1": "--seed=-1: must be at least 0",
    "dev stress hcu -n 0": "n=0: must be at least 1",
    "dev nightly proofs --minutes 0": "minutes=0.0: must be above 0",
    "simulate layer --tokens 0": "--tokens=0: must be at least 1",
    "simulate layer --tokens 196": "tokens=196: must be at most 16, a section of a pass: a longer one repeats",
    "simulate layer --cached 0": "--cached=0: must be at least 1",
    "simulate layer --share 2": "--share=2: must be 0 to 1",
    "simulate layer --share nan": "--share=nan: must be 0 to 1",
    "simulate layer --preset tiny": "entry_bytes=768: must be a multiple of 512: K and V of a head",
    "simulate layer --latency 0": "--latency=0: must be at least 1",
    "simulate prediction --tokens 0": "--tokens=0: must be at least 1",
    "simulate prediction --share -1": "--share=-1: must be 0 to 1",
    "simulate prediction --latency -5": "--latency=-5: must be at least 1",
    "simulate pass --cache 0": "--cache=0: must be at least 1",
    "simulate pass --cache -1": "cache",
    "simulate pass --batch 0": "batch",
    "papers fleet --streams 0": "streams",
    "papers fleet --fps 0": "fps=0.0: must be more than 0, and finite",
    "papers fleet --fps nan": "fps=nan: must be",
    "papers fleet --hours -1": "hours",
    "papers fleet --hours nan": "hours=nan: must be more than 0, and finite",
    "papers fleet --workers 0": "--workers=0: must be at least 1",
    "papers fleet --preset huge": "preset='huge': must be one of",
    "papers fleet -p kvmu.entry_bytes=0": "entry_bytes=0",
    "run resv --trace trace.safetensors --layers 0": "--layers=0: must be at least 1",
    "run resv --trace trace.safetensors --frames 0": "frames",
    "run resv --trace trace.safetensors --workers 0": "--workers=0: must be at least 1",
    "run resv --trace trace.safetensors --from -1": "--from=-1: must be at least 0",
    "answer --frames -1": "--frames=-1: must be at least 0",
    "answer --tokens 7": "tokens=7: must be",
    "answer --fps 0": "fps=0.0: must be above 0",
    "answer --generate 0": "--generate=0: must be at least 1",
    "answer --layers 31": "--layers=31: must be at most 30",
    "answer --layers 0": "--layers=0: must be at least 1",
    "answer --model nowhere": "--model='nowhere': no such file or folder",
    "answer --model file": "model='file': must be a GGUF file",
    "answer --model folder": "folder: config.json=None: must be in the folder",
    "answer --model model": "model: quantization_config: group_size=96: must be 32 or 64 or 128, groups",
    "answer --workers 0": "--workers=0: must be at least 1",
    "answer --to 3": "--from=None: must be given with --to and --waves",
    "answer -p n_q=3": "parameter='n_q': unknown",
    "answer -p lxe.codes=0": "lxe.codes=0: must be the numbers of a code for pages",
    "answer nowhere.mp4": "nowhere.mp4",
    "answer --encoder gpu": "encoder='gpu': must be one of core, numpy",
    "answer --policy mosaic": "policy='mosaic': must be resv or pages",
    "run resv --trace trace.safetensors --waves": "--from=None: must be given with --to and --waves",
    "trace world -o new --frames 0": "frames=0",
    "trace world -o new --tokens 3": "tokens=3",
    "trace world -o new --layers 99": "layers=",
    "trace world -o new --fps nan": "fps=nan: must be a finite number",
    "trace world -o new --fps 0": "fps=0",
    "trace world -o new --queries -1": "queries",
    "trace world -o new --generate -1": "generate",
    "trace world -o new --layers '0;1'": "layers='0;1'",
    "trace world -o new --tokens 5x": "tokens",
    "papers demo --frames 0": "frames",
    "papers demo --layers 0,x": "layers='0,x': must be numbers",
    "papers demo --tokens 3": "tokens",
    "papers stream trace.safetensors --frames 0": "frames",
    "papers stream trace.safetensors --gop -1": "gop",
    "papers stream trace.safetensors -p rekv.recent=3": "rekv is not among the policies to run (full, resv)",
    "papers stream trace.safetensors -p resv.resv.th_hd=99": "th_hd=99: must be 0 to n_hp + 1 = 33",
    "dev record clocks": "result='clocks': must be one of clock",
    "dev speed --cache x": "cache='x': must be positive integers",
    "dev speed --repeat 0": "repeat=0: must be at least 1",
    "dev speed --tokens 0": "tokens=0",
    "dev speed --heads 1,2": "heads='1,2': must be query heads, KV heads, head size",
    "papers prune world --frames 0": "frames=0: must be at least 1",
    "papers prune world --gop -1": "gop=-1: must be at least 0",
    "papers prune world -p grid=0": "grid=0",
    "papers prune world -p tau=nan": "tau=nan: must be finite",
    "papers prune world --window -1": "--window=-1: must be at least 0",
    "papers prune world --window 8 --stride 0": "--stride=0: must be at least 1",
    "papers prune world --window 8 --depth 99": "depth=99: must be 1 to 30",
    # Files that are read.
    "asm nowhere": "nowhere: No such file",
    "asm folder": "folder: Is a directory",
    "asm binary": "binary",
    "verify hcu --trace nowhere": "nowhere: cannot be read",
    "verify hcu --trace folder": "folder: cannot be read",
    "verify hcu --trace folder/wrong": "folder/wrong: damaged, or not a safetensors file",
    "verify hcu --plan --tests file": "file",
    "verify dre --stall 1": "stall=1.0: must be at least 0 and below 1",
    "size power hcu --trace nowhere": "nowhere: cannot be read",
    "size power hcu --liberty nowhere": "nowhere: cannot read the Liberty file",
    "simulate dre nowhere": "nowhere: cannot be read",
    "simulate dre folder/wrong": "folder/wrong: damaged",
    "papers measure nowhere": "nowhere: cannot be read",
    "report --trace nowhere": "nowhere: cannot be read",
    "report --sweep folder": "sweep=folder: not a folder that `vrex sweep` wrote",
    "report --run folder": "run=folder: not a folder that `vrex run` wrote",
    "report --tests file": "tests=file: not JUnit's XML",
    "run resv --trace nowhere": "nowhere: cannot be read",
    "run resv --trace folder/wrong": "folder/wrong: damaged",
    "run resv --trace trace.safetensors": "trace.safetensors: holds nothing that goes into the first layer: record it",
    "run resv --trace trace.safetensors --to 1": "--from=None: must be given with --to and --waves",
    "run resv --trace trace.safetensors --layers 31": "layers=31: must be 1 to 30",
    "run windows": "Missing argument 'policy'",
    "run windows rekv": "policy='rekv': must be one of full, streamingllm, codecsight, hybrid: resv and mosaic are",
    "run windows full --ahead": "No such option: --ahead",
    "run windows hybrid -p hybrid.ssm=random": "ssm='random': must be disabled on a core without the functions",
    "run windows codecsight -p codecsight.tau=1": "parameter='tau': unknown; valid: window, stride, refr",
    "run windows codecsight -p codecsight.window=0": "window=0: must be at least 1",
    "run windows full --tokens 3": "tokens=3: must be",
    "run windows full --encoder gpu": "encoder='gpu': must be one of core, numpy",
    "run windows codecsight --encoder core --tokens 16": "tokens=16: must be 64 or 65 to encode frames in part",
    "run windows full --layers 31": "depth=31: must be 1 to 30",
    "run windows full --video nowhere.mp4": "nowhere.mp4",
    "run windows full --to 4": "--from=None: must be given with --to and --waves",
    "run mosaic -p mosaic.arithmetic=float": "arithmetic='float': must be hardware: the core decides",
    "run mosaic -p mosaic.prefetch=input": "prefetch='input': must be one of none, query",
    "run mosaic -p mosaic.tau=1": "parameter='tau': unknown; valid: ratio, breadth",
    "run mosaic --ahead": "No such option: --ahead",
    "sweep N_HCU=1 --trace nowhere": "nowhere: cannot be read",
    "sweep N_HCU=1 --liberty nowhere": "nowhere",
    "sweep N_HCU=3,5": "n_h=3: must divide tile = 64",
    "sweep N_HCX=3": "parameter='N_HCX': unknown; write N_HCU",
    "sweep n_hcu=3": "parameter='n_hcu': unknown; write N_HCU",
    "sweep N_HCU=1 -p N_wtu=2": "parameter='N_wtu': unknown; write N_WTU",
    "sweep N_HCU=1 --target 5": "must be more than 0 ps, and needs effort speed",
    "sweep N_HCU=1,2 --search 1 --list": "leave out one",
    "dev speed --trace nowhere": "nowhere: cannot be read",
    "papers stream nowhere.safetensors": "nowhere.safetensors: cannot be read",
    "papers stream nowhere.mp4": "nowhere.mp4: no such file",
    "trace nowhere.mp4 -o new": "nowhere.mp4: no such file",
    "trace file -o new": "file",
    "papers prune nowhere.mp4": "nowhere.mp4: no such file",
    "size area hcu --liberty nowhere": "nowhere: cannot read the Liberty file",
    "size area hcu --liberty folder": "folder: is read more than once, so it must be a regular file",
    "size libraries dre nowhere": "pattern='nowhere': names no file",
    "size libraries hcu nowhere": "unit='hcu': has no units inside",
    "size table3 --power nowhere": "--power='nowhere': cannot read it",
    "size table3 --power file": "--power='file': is no output of",
    "simulate pass --select nowhere.json": "nowhere.json: No such file",
    "simulate pass --select wrong.json": "wrong.json: not a results.json",
    "simulate selection file": "file: not a results.json",
    "papers policies nowhere": "nowhere: No such file",
    "simulate policies --platform agx": "platform='agx'",
    "simulate policies a.json b.json": "unexpected extra argument",
    "size area hcu --liberty pipe": "pipe: is read more than once, so it must be a regular file",
    "size area dre -p i_depth=8": "parameter='i_depth': dre has none of this name; it has dre.reading, hcu.n_h, ",
    "size area -p n_z=3": "parameter='n_z': unknown; valid names",
    "generate hcu --design pipe": "pipe: must be a regular file",
    "generate hcu --design pipe.toml": "pipe.toml: must be a regular file",
    "trace pipe -o new": "pipe: not a file",
    # Folders and files that are written.
    "papers prune world --vectors new": "must end in .npz",
    "papers prune world --vectors ''": "--vectors='': must name a file",
    "papers prune world --vectors folder": "must be a file, and is a folder",
    "papers stream": "Missing argument 'VIDEO...'",
    "papers calibrate --model bert": "model='bert': must be one of smollm2, gemma3",
    "papers calibrate --tokens 9000": "tokens=9000: must be at most 8192: smollm2 knows 8192 positions",
    "papers calibrate --tokens 512": "tokens=512: must be above 512",
    "papers calibrate --numbers 65": "numbers=65: must be at most 64, the numbers of a head",
    "papers calibrate nowhere.txt": "nowhere.txt",
    "papers stream text --frames 0": "frames=0: must be at least 1",
    "papers stream text --tokens 0": "tokens=0: must be at least 1",
    "papers stream text --frames 9000": "the decoder knows only 8192 positions",
    "papers stream world --tokens 11": "tokens=11: must be g*g",
    "papers stream world --fps 0": "fps=0.0: must be above 0",
    "papers stream world --gop -1": "gop=-1: must be at least 0",
    "papers stream text --gop 4": "gop=4: must be 0 for text",
    "papers stream text --depth 31": "depth=31: must be 1 to 30",
    "papers stream text --depth 0": "depth=0: must be 1 to 30",
}
GROUPS_OF_96 = CONFIG | {"quantization_config": QUANTIZATION["gptq"] | {"group_size": 96}}
OUTPUTS = (
    "generate hcu",
    "ip dre_ip",
    "size area hcu",
    "sweep N_HCU=1",
    "report",
    "papers demo",
    "dev mutate hcu",
    "dev stress hcu",
    "dev coverage hcu",
    "simulate pass",
    "papers evaluate",
    "papers fleet",
    "run resv --trace trace.safetensors",
    "papers stream trace.safetensors",
    "asm program",
    "trace world",
)
FILES = ("asm", "trace")  # whose -o is a file
for line in OUTPUTS:
    single = line.split()[0] in FILES
    wrong, why = ("folder", "must be a file, and is a folder") if single else ("file", "file is a file")
    TYPED |= {
        f"{line} -o ''": "-o='': must name a file" if single else "-o='': must name a folder",
        f"{line} -o {wrong}": why,
        f"{line} -o file/deep/new.npz": "file is a file",
        f"{line} -o locked/new.npz": "locked is not",
    }


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to type in. `locked/` is for nobody to write into, root included."""
    for name in ("folder", "locked"):
        (tmp_path / name).mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(GROUPS_OF_96))
    for name, text in {"file": "text\n", "folder/wrong": "text\n", "wrong.json": "{}", "program": "end\n"}.items():
        (tmp_path / name).write_text(text)
    for name in ("pipe", "pipe.toml"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    (tmp_path / "trace.safetensors").symlink_to(FIXTURE)
    (tmp_path / "bikes.safetensors").symlink_to(FIXTURE.with_name("bikes.safetensors"))
    can = os.access
    monkeypatch.setattr(os, "access", lambda path, *how, **k: "locked" not in str(path) and can(path, *how, **k))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(place: Path, line: str) -> str:
    """What the command says that refuses `line`, in one line, having written nothing."""
    before = sorted(place.rglob("*"))
    run = CliRunner().invoke(app, shlex.split(line))
    assert run.exit_code == 2, (run.exit_code, run.exception, run.output[-500:])
    assert isinstance(run.exception, SystemExit)
    assert re.fullmatch(r"error: \S.*\n", run.stderr), run.stderr
    assert sorted(place.rglob("*")) == before
    return run.stderr


@pytest.mark.parametrize("line", TYPED)
def test_is_one_line(line, place):
    assert TYPED[line] in refused(place, line)


def test_a_byte_order_mark_and_other_line_ends_are_read_over(tmp_path):
    """Editors leave them in a design, in a program, in recorded results, and in a generated folder."""

    def marked(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
        return path

    design = marked("d.toml", 'preset = "tiny"\nclusters = 32\n')
    run = CliRunner().invoke(app, ["asm", str(marked("program", "halt\n")), "--design", str(design)])
    assert run.exit_code == 0, run.stderr
    results = marked("results.json", "{}\n")
    assert "KeyError" in CliRunner().invoke(app, ["simulate", "selection", str(results)]).stderr
    verilog = "module hcu;\nendmodule\n"
    marked("hcu.v", verilog)
    manifest = {"top": "hcu", "unit": "hcu", "params": {}, "language": "verilog2005"}
    marked("manifest.json", json.dumps(manifest | {"sha256": hashlib.sha256(verilog.encode()).hexdigest()}))
    assert not generated.edited(generated.read(tmp_path))


def test_every_command_is_typed_wrongly():
    commands = get_command(app).commands
    assert {line.split()[0] for line in TYPED} >= commands.keys()
    simulated = {line.split()[1] for line in TYPED if line.startswith("simulate ")}
    assert simulated >= commands["simulate"].commands.keys()


def test_no_environment_is_needed(monkeypatch):
    """`env -i vrex verify` finds the compiler where a shell without a PATH would."""
    monkeypatch.delenv("PATH")
    assert runner.verilator_env()["PATH"].endswith(os.defpath)


def test_a_simulator_is_built_in_a_folder_with_a_space(tmp_path, monkeypatch):
    """Verilator makes its C++, and `make -n` lists what it would run."""
    run = runner._run

    def listed(command: list[str], *more, **options) -> None:
        run([command[0], "-n", *command[1:]] if command[0] == "make" else command, *more, **options)

    monkeypatch.setattr(runner, "BUILD", tmp_path / "a b" / "sim")
    monkeypatch.setattr(runner, "_run", listed)
    simulator = runner.simulator(emit("cluster_set", params_of("cluster_set", PRESETS["tiny"])))
    assert "cluster_set" in (simulator.parent.parent / "make.log").read_text()


def test_a_build_that_was_stopped_begins_again(tmp_path, monkeypatch):
    """Verilator would leave what it wrote before as it is, with what the build had added."""
    monkeypatch.setattr(runner, "BUILD", tmp_path / "sim")
    run, unit = runner._run, emit("cluster_set", params_of("cluster_set", PRESETS["tiny"]))
    for stops in (True, False):

        def some(command: list[str], *more, stops=stops, **options) -> None:
            if command[0] != "make":
                run(command, *more, **options)
            elif stops:
                raise KeyboardInterrupt

        monkeypatch.setattr(runner, "_run", some)
        with pytest.raises(KeyboardInterrupt) if stops else nullcontext():
            simulator = runner.simulator(unit)
    added = re.findall(r"^#include .*/verilator.cpp", (simulator.parent / "Vtop.cpp").read_text(), re.M)
    assert len(added) == 1


@pytest.mark.parametrize(
    "line",
    ["verify hcu", "size power hcu", "dev mutate cluster_set -n 1", "dev coverage cluster_set", "dev stress hcu -n 1"],
)
def test_a_missing_compiler_is_named(line, place, monkeypatch):
    monkeypatch.setattr(runner, "BUILD", place / "folder" / "sim")
    monkeypatch.setenv("PATH", "")
    run = CliRunner().invoke(app, shlex.split(line))
    assert run.exit_code == 2, run.output[-500:]
    told = run.stderr.splitlines()[-1]  # behind what the command says of its progress
    assert re.fullmatch(r"error: perl make g\+\+: not found, .*\(apt install perl make g\+\+\)", told)
