"""Say what readers return and raise, and what their classes are: run bare and traced, it prints the same."""

# ruff: noqa
import gzip
import importlib
import inspect, io, json, lzma, pickle, sqlite3, zlib
import numpy as np


def tell(label, function):
    try:
        value = function()
        print(
            label,
            type(value).__name__,
            value if isinstance(value, (str, int, bool, tuple, list, bytes)) else "",
        )
    except Exception as error:
        import traceback

        lines = traceback.format_exc().splitlines()
        print(label, type(error).__name__, error, len(lines))


base = sqlite3.connect("x.db")
base.execute("create table t (v blob)")
base.execute("insert into t values (1)")
tell(
    "conn", lambda: (type(base) is sqlite3.Connection, repr(type(base)), isinstance(base, sqlite3.Connection))
)
tell("cursor", lambda: type(base.execute("select * from t")) is sqlite3.Cursor)
tell("rows", lambda: base.execute("select * from t").fetchall())
tell("bad sql", lambda: base.execute("nonsense"))
tell("bad args", lambda: base.execute())


class Mine(sqlite3.Connection):
    def execute(self, *a):
        return super().execute(*a)


tell("subclass", lambda: sqlite3.connect("x.db", factory=Mine).execute("select 2").fetchall())
tell("pickle.loads", lambda: pickle.loads(b"bad"))
tell("pickle ref", lambda: pickle.loads(pickle.dumps(pickle.loads)) is pickle.loads)
tell("pickle ref2", lambda: pickle.loads(pickle.dumps(json.loads)) is json.loads)
tell("json bad", lambda: json.loads("{"))
tell("json sig", lambda: str(inspect.signature(json.loads)))
tell("zlib", lambda: zlib.decompress(b"bad" * 1000))
tell("gzip", lambda: gzip.decompress(b"bad" * 1000))
tell("gz", lambda: gzip.open(io.BytesIO(gzip.compress(b"x" * 99999))).read()[:3])
tell("lzma", lambda: lzma.open(io.BytesIO(lzma.compress(b"x" * 99999))).read()[:3])


def opt(name):
    try:
        return importlib.import_module(name)
    except Exception:
        print("no", name)
        return None


cv2 = opt("cv2")
if cv2:
    tell("imread", lambda: cv2.imread("missing.png"))
    tell("imread bad", lambda: cv2.imread(3))
    tell("imdecode", lambda: cv2.imdecode(np.zeros(0, np.uint8), 0))
netCDF4 = opt("netCDF4")
if netCDF4:
    f = netCDF4.Dataset("a.nc", "w")
    f.createDimension("x", 3)
    v = f.createVariable("v", "f4", ("x",))
    v[:] = [1, 2, 3]
    tell("nc", lambda: (type(v) is netCDF4.Variable, v[1].item(), v[:].sum().item(), repr(v)[:60], len(v)))
    tell("nc err", lambda: v[9, 9])
    tell("nc list", lambda: list(v))
    f.close()
    tell("nc closed", lambda: v[:])
st = opt("safetensors.numpy")
if st:
    import safetensors

    st.save_file({"x": np.ones(3)}, "a.st")
    tell(
        "st",
        lambda: [safetensors.safe_open("a.st", "np").get_tensor("x").tolist(), repr(safetensors.safe_open)],
    )
    tell("st kw", lambda: list(safetensors.safe_open(filename="a.st", framework="np").keys()))
    tell("st err", lambda: safetensors.safe_open("missing", "np"))
    tell("st err2", lambda: safetensors.safe_open("a.st", "np").get_tensor("y"))
    tell("st err3", lambda: safetensors.safe_open())
lmdb = opt("lmdb")
if lmdb:
    env = lmdb.open("l", map_size=1 << 20)
    with env.begin(write=True) as t:
        t.put(b"k", b"v")
    t = env.begin()
    tell(
        "lmdb",
        lambda: (
            t.get(b"k"),
            t.get(b"z", b"d"),
            type(t) is lmdb.Transaction,
            [k for k, _ in t.cursor()],
            t.cursor().get(b"k"),
        ),
    )
    tell("lmdb err", lambda: t.get())
    b = env.begin(buffers=True)
    tell("lmdb kw", lambda: bytes(b.get(b"k")))
    b.abort()
    t.abort()
pa = opt("pyarrow.dataset")
if pa:
    import pyarrow as P, pyarrow.parquet as pq

    pq.write_table(P.table({"x": [1, 2]}), "a.parquet")
    d = pa.dataset("a.parquet")
    tell(
        "ds",
        lambda: (
            d.to_table().num_rows,
            d.head(1).num_rows,
            len(list(d.to_batches())),
            type(d).__name__,
            pickle.loads(pickle.dumps(d)).count_rows(),
        ),
    )
    tell("ds err", lambda: d.to_table(columns=["nope"]).num_rows)
    tell("pqf", lambda: pickle.dumps(pq.ParquetFile("a.parquet")))
duckdb = opt("duckdb")
if duckdb:
    tell("duck", lambda: (duckdb.sql("select 1").fetchall(), duckdb.connect().execute("select 2").fetchall()))
    tell("duck err", lambda: duckdb.sql("nonsense"))
pl = opt("polars")
if pl:
    tell("pl", lambda: (pl.read_parquet("a.parquet").shape, pl.scan_parquet("a.parquet").collect().shape))
    tell("pl err", lambda: pl.read_parquet("missing"))
av = opt("av")
if av:
    tell("av err", lambda: av.open("missing"))
zs = opt("zstandard")
if zs:
    tell("zs", lambda: zs.ZstdDecompressor().decompress(zs.compress(b"x" * 9999))[:3])
    tell("zs err", lambda: zs.decompress(b"bad" * 1000))
lz = opt("lz4.frame")
if lz:
    tell("lz err", lambda: lz.decompress(b"bad" * 1000))
ds = opt("datasets")
if ds:
    d = ds.Dataset.from_dict({"x": [1, 2, 3]})
    tell(
        "hf",
        lambda: (
            d[0]["x"],
            d[:]["x"],
            pickle.loads(pickle.dumps(d))[1]["x"],
            d.map(lambda r: {"y": r["x"]}).column_names,
        ),
    )
    tell("hf err", lambda: d[99])
rio = opt("rasterio")
if rio:
    tell("rio err", lambda: rio.open("missing.tif"))
sf = opt("soundfile")
if sf:
    tell("sf err", lambda: sf.read("missing.wav"))
nib = opt("nibabel")
if nib:
    tell("nib err", lambda: nib.load("missing.nii"))
ob = opt("obstore")
if ob:
    from obstore.store import MemoryStore

    s = MemoryStore()
    ob.put(s, "a", b"xyz")
    tell("ob", lambda: (bytes(s.get("a").bytes()), bytes(ob.get_range(s, "a", start=0, end=2))))
    tell("ob err", lambda: s.get("nope"))
fs = opt("fsspec")
if fs:
    tell("fs err", lambda: fs.filesystem("http").cat_file("http://127.0.0.1:9/x"))
