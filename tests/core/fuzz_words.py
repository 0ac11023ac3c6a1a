"""What a fuzzer of the trace reader starts with: the words of the format, and a trace."""

KEYS = (
    "format", "version", "comment", "op", "cost_ns", "inputs", "outputs", "writes", "overwrites",
    "memory", "side", "replayable", "root", "bytes", "free", "keep", "unkeep", "evict",
    "materialize", "make_root", "step", "begin", "end", "left", "right", "output", "temporary",
)  # fmt: skip
SEED = b"""{"format":"coop-trace","version":2,"comment":"a"}
{"root":1,"bytes":4096}
{"op":"a::b","cost_ns":5,"inputs":[1,1],"outputs":[[2,8192],[3,64]],"side":"left",\
"memory":[["output",1],["temporary",512],["output",0],["free",0]]}
{"keep":2}
{"op":"c","cost_ns":1,"writes":[2],"overwrites":[3],"replayable":false}
{"unkeep":2}
{"evict":2}
{"materialize":2}
{"step":"begin"}
{"op":"d","cost_ns":7,"inputs":[2],"writes":[1]}
{"step":"end"}
{"make_root":2}
{"free":3}
"""
