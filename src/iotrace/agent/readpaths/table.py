"""The calls that read or decode files, by the module in which a library defines them: one row each.

A row is data: packages add rows by entry points (`docs/readpaths.md`), which `parse` reads. A call that is
missing belongs to another version of the library. `docs/readpaths.md` says what is not recorded, and why.
"""

from __future__ import annotations

from iotrace.agent.readpaths import finders

TYPE_CHECKING = False  # `tarfile` alone does not bring `typing`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    # (result, args, kwargs) of a call -> its file, in any form; or its bytes.
    File = str | Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
    Size = str | Callable[[Any, tuple[Any, ...], dict[str, Any]], int]

# Inputs of fewer bytes are not recorded: programs parse many small things that are no data.
_SMALL_TEXT = 4096
_SMALL_PACKED = 512  # compressed: it may become large


class Row:
    """One call, or several of one class or module that are alike.

    `call` is ``function`` or ``Class.method``, with further names of the same owner after blanks. `file` says
    where a call has its file and `size` where its bytes are, as `finders` describes; empty: unknown. The time
    of a call without a file is charged to the file that the same item has read last.
    """

    __slots__ = (
        *("about", "call", "chunks", "each", "file", "groups", "item", "least", "library", "made"),
        *("memory", "size", "skip", "threads"),
    )

    def __init__(
        self,
        library: str,
        call: str,
        file: File = "",
        size: Size = "result",
        *,
        threads: bool = False,
        memory: bool = False,
        least: int = 0,
        each: bool = False,
        made: bool = False,
        about: Callable[[tuple[Any, ...]], dict[str, Any]] | None = None,
        item: bool = False,
        chunks: bool = False,
        groups: bool = False,
        skip: Callable[[tuple[Any, ...]], bool] | None = None,
    ) -> None:
        self.library, self.call, self.file, self.size = library, call, file, size
        self.threads = threads  # the library works on threads of its own, while the caller sleeps
        self.memory = memory  # it works on what is in memory: to wait for its threads is no reading
        self.least = least  # calls whose first argument holds fewer bytes are not recorded
        self.each = each  # the call returns an iterator: each of its items is recorded
        self.about = about  # what to record of a file once, from the arguments of a call
        self.chunks = chunks  # how many chunks of an array the call's selection touches is counted
        self.groups = groups  # which row groups of a Parquet file it reads is counted
        self.skip = (
            skip  # by its arguments: the call holds code of the program's; what it reads has other rows
        )
        self.item = item  # the call makes a sample, of which reading is a part
        self.made = made  # not recorded: `made` in another row's `file` is the file of what this call returns


def _alike(library: str, calls: str, **options: Any) -> tuple[Row, ...]:
    """Make a row for each of `calls`, alike in all other respects."""
    return tuple(Row(library, call, **options) for call in calls.split(", "))


def _pandas(calls: str, parameter: str) -> tuple[Row, ...]:
    return (Row("pandas", calls, f"0:{parameter}", threads=True),)


def _inflate(library: str, calls: str, threads: bool = False) -> tuple[Row, ...]:
    return (Row(library, calls, least=_SMALL_PACKED, threads=threads, memory=threads),)


def _opened(
    library: str, call: str, file: str, calls: str, size: Size = "", threads: bool = True
) -> tuple[Row, ...]:
    """Make the rows of a class that `call` opens a `file` with; `calls` are those that then read it."""
    owner = call.rpartition(".")[0]
    return Row(library, call, file, made=True), Row(
        library, f"{owner}.{calls}", "made 0", size, threads=threads
    )


def _ipc(reader: str, calls: str) -> tuple[Row, ...]:
    return _opened("pyarrow.ipc", f"{reader}.__init__", "1:source", calls, "result")


def _polars(call: str) -> tuple[Row, ...]:
    return (Row("polars", call, "0:source", finders.polars, threads=True),)


def _xarray(wrapper: str) -> tuple[Row, ...]:
    return (Row("xarray", f"{wrapper}._getitem", "0.datastore._filename"),)


_FRAMES = (
    "__getitem__ get_frame_at get_frames_at get_frames_in_range get_frame_played_at get_frames_played_at "
    "get_frames_played_in_range get_all_frames"
)
_TIFF_PARTS = "TiffPageSeries.asarray, TiffPage.asarray, TiffFrame.asarray"
_GROUPS = "read read_row_group read_row_groups"
_FETCHING = "execute fetchall fetchmany df fetchdf fetch_df fetchnumpy torch"
_ZARR = Row(
    "zarr", "Array.__getitem__", finders.zarr_array, threads=True, about=finders.about_zarr, chunks=True
)

ROWS: dict[str, tuple[Row, ...]] = {
    "h5py": (
        Row("h5py", "Dataset.__getitem__", finders.h5py_file, chunks=True),
        Row("h5py", "Dataset.read_direct", finders.h5py_file, "1:dest"),
    ),
    "zarr.core": (_ZARR,),  # zarr 2
    "zarr.core.array": (_ZARR,),
    "anemoi.training.data.multidataset": (Row("anemoi", "MultiDataset.get_sample", size="", item=True),),
    "anemoi.datasets.usage.gridded.store": (
        Row("anemoi", "GriddedZarr.__getitem__", "0.path", about=finders.about_anemoi, item=True),
    ),
    "netCDF4._netCDF4": (Row("netCDF4", "Variable.__getitem__", "0.group().filepath()"),),
    "xarray.backends.netCDF4_": _xarray("NetCDF4ArrayWrapper"),
    "xarray.backends.h5netcdf_": _xarray("H5NetCDFArrayWrapper"),
    "xarray.backends.scipy_": _xarray("ScipyArrayWrapper"),
    "numpy": (
        Row("numpy", "load", "0:file", finders.unless_mapped),
        Row("numpy", "fromfile", "0:file"),
        Row("numpy", "lib.npyio.NpzFile.__getitem__", "0.zip.filename"),
    ),
    "torch": (Row("torch", "load", "0:f", ""),),
    "safetensors": _opened(
        "safetensors", "safe_open.__init__", "1:filename", "get_tensor", "result", threads=False
    ),
    "safetensors.torch": (Row("safetensors.torch", "load_file", "0:filename", ""),),
    "safetensors.numpy": (Row("safetensors.numpy", "load_file", "0:filename", ""),),
    "PIL.Image": (Row("PIL.Image", "open", finders.pil_opened),),  # reads the header alone
    "PIL.ImageFile": (
        Row("PIL", "ImageFile.load", finders.pil_image, finders.pil_bytes, skip=finders.pil_is_loaded),
    ),
    "cv2": (
        Row("cv2", "imread imreadmulti", "0:filename", threads=True),
        Row("cv2", "imdecode imdecodemulti", threads=True, memory=True),
        Row("cv2", "VideoCapture.__init__", "1:filename", made=True),
        Row("cv2", "VideoCapture.open", "1:filename", made=True),
        Row("cv2", "VideoCapture.read", "made 0", "result.1", threads=True),
        Row("cv2", "VideoCapture.grab retrieve", "made 0", "", threads=True),
    ),
    "turbojpeg": (Row("turbojpeg", "TurboJPEG.decode decode_to_yuv"),),
    "simplejpeg._jpeg": (Row("simplejpeg", "decode_jpeg"),),
    "torchvision.io.image": (
        Row("torchvision.io", "read_file", "0:path"),
        Row("torchvision.io", "read_image decode_image", "0"),
        Row("torchvision.io", "decode_jpeg decode_png decode_gif decode_webp"),
    ),
    "tifffile.tifffile": (
        Row("tifffile", "imread", "0:files", threads=True),
        Row("tifffile", "TiffFile.asarray", "0.filehandle.path", threads=True),
        *_alike("tifffile", _TIFF_PARTS, file="0.parent.filehandle.path", threads=True),
    ),
    "rasterio.io": (
        Row("rasterio", "DatasetReader.read", "0.name", threads=True, about=finders.about_rasterio),
        Row("rasterio", "DatasetWriter.read", "0.name", threads=True),
        Row("rasterio", "DatasetReader.read_masks sample", "0.name", threads=True),
    ),
    "osgeo.gdal": (
        Row("gdal", "Dataset.ReadAsArray ReadRaster", "0.GetDescription()", threads=True),
        Row("gdal", "Band.ReadAsArray ReadRaster", "0.GetDataset().GetDescription()", threads=True),
    ),
    "nibabel.arrayproxy": (Row("nibabel", "ArrayProxy._get_scaled _get_unscaled", "0.file_like"),),
    "pydicom.filereader": (Row("pydicom", "dcmread", "0:fp", ""),),
    "pydicom.dataset": (Row("pydicom", "Dataset.convert_pixel_data", "0.filename", "0._pixel_array"),),
    "soundfile": (
        Row("soundfile", "SoundFile.read buffer_read", "0.name", "result"),
        Row("soundfile", "SoundFile.buffer_read_into", "0.name", "1:buffer"),
    ),
    "torchaudio": (Row("torchaudio", "load", "0:uri", "result.0"),),
    "av.container.input": (
        # A video's codec works on threads of its own.
        Row("av", "InputContainer.decode demux", "0.name", "", each=True, threads=True),
    ),
    "av.packet": (Row("av", "Packet.decode", "0.stream.container.name", "", threads=True),),
    # The conversion of a frame's colours may take longer than its decoding; threads of its own do that, too.
    "av.video.frame": (
        Row("av", "VideoFrame.to_ndarray to_image to_rgb reformat", size="", threads=True, memory=True),
    ),
    "decord.video_reader": _opened("decord", "VideoReader.__init__", "1:uri", "next get_batch __getitem__"),
    "decord.audio_reader": (Row("decord", "AudioReader.__init__", "1:uri", "", threads=True),),
    "torchcodec.decoders._video_decoder": _opened(
        "torchcodec", "VideoDecoder.__init__", "1:source", _FRAMES, "result.data"
    ),
    "torchcodec.decoders._audio_decoder": _opened(
        *("torchcodec", "AudioDecoder.__init__", "1:source"),
        *("get_all_samples get_samples_played_in_range", "result.data"),
    ),
    "tarfile": (
        Row("tarfile", "TarFile.next", finders.archive, ""),
        # What fills the buffer that members are read through: a span for each fill, not for each call.
        Row("tarfile", "_FileInFile.read", "0.fileobj"),
    ),
    "gzip": (Row("gzip", "_GzipReader.read", "0._fp.file"), *_inflate("gzip", "decompress")),
    "_compression": (Row("bz2 or lzma", "DecompressReader.read", "0._fp"),),
    "zlib": _inflate("zlib", "decompress"),
    "bz2": _inflate("bz2", "decompress"),
    "lzma": _inflate("lzma", "decompress"),
    "zipfile": (Row("zipfile", "ZipFile.read", "0.filename"),),
    "zstandard": (
        *_inflate("zstandard", "decompress"),
        Row("zstandard", "ZstdDecompressor.decompress", least=_SMALL_PACKED),
        Row("zstandard", "ZstdDecompressionReader.read readall readinto", size=""),
    ),
    "lz4.frame": (
        *_inflate("lz4.frame", "decompress"),
        Row("lz4.frame", "LZ4FrameFile.read", "0._fp"),
    ),
    "lz4.block": _inflate("lz4.block", "decompress"),
    "blosc.toplevel": _inflate("blosc", "decompress unpack_array", threads=True),
    "blosc2.core": _inflate(
        "blosc2", "decompress decompress2 unpack unpack_array unpack_tensor", threads=True
    ),
    "blosc2.ndarray": (Row("blosc2", "NDArray.__getitem__", "0.schunk.urlpath", threads=True),),
    "pickle": (Row("pickle", "load", "0:file", ""), Row("pickle", "loads", size="0", least=_SMALL_TEXT)),
    "json": (Row("json", "load", "0:fp", ""), Row("json", "loads", size="0", least=_SMALL_TEXT)),
    "sqlite3.dbapi2": (
        Row("sqlite3", "connect", "0:database", made=True),
        Row("sqlite3", "Connection.execute", "made 0", ""),
        Row("sqlite3", "Cursor.execute", "made 0.connection", ""),
        Row("sqlite3", "Cursor.fetchall fetchmany", "made 0.connection", finders.rows_size),
    ),
    "duckdb": (
        Row("duckdb", "connect", "0:database", made=True),
        Row("duckdb", "execute", size="", threads=True),
        Row("duckdb", f"DuckDBPyConnection.{_FETCHING}", "made 0", "", threads=True),
        Row("duckdb", "DuckDBPyRelation.execute fetchall df to_df fetchnumpy arrow torch", "", threads=True),
    ),
    "lmdb.cpython": (
        Row("lmdb", "Environment.begin", finders.lmdb_data, made=True),
        Row("lmdb", "Transaction.cursor", "made 0", made=True),
        Row("lmdb", "Transaction.get", "made 0"),
        Row("lmdb", "Cursor.get item value getmulti", "made 0"),
    ),
    "polars.io.csv.functions": _polars("read_csv"),
    "polars.io.parquet.functions": _polars("read_parquet"),
    "polars.io.ipc.functions": _polars("read_ipc"),
    "polars.io.ndjson": _polars("read_ndjson"),
    "polars.io.json.read": _polars("read_json"),
    "polars.lazyframe.frame": (Row("polars", "LazyFrame.collect", "", finders.polars, threads=True),),
    "pyarrow.parquet.core": (
        Row("pyarrow.parquet", "ParquetFile.__init__", "1:source", made=True),
        Row("pyarrow.parquet", "read_table", "0:source", threads=True),
        Row("pyarrow.parquet", f"ParquetFile.{_GROUPS}", "made 0", threads=True, groups=True),
        Row("pyarrow.parquet", "ParquetFile.iter_batches", "made 0", each=True, threads=True, groups=True),
        *_opened("pyarrow.parquet", "ParquetDataset.__init__", "1:path_or_paths", "read", "result"),
    ),
    "pyarrow.ipc": (
        *_ipc("RecordBatchFileReader", "read_all get_batch get_record_batch"),
        *_ipc("RecordBatchStreamReader", "read_all read_next_batch __next__"),
    ),
    "pyarrow.feather": (Row("pyarrow.feather", "read_feather read_table", "0:source", threads=True),),
    "pyarrow.orc": (Row("pyarrow.orc", "read_table", "0:source", threads=True),),
    "pyarrow.csv": (Row("pyarrow.csv", "read_csv", "0:input_file", threads=True),),
    "pyarrow.json": (Row("pyarrow.json", "read_json", "0:input_file", threads=True),),
    "pyarrow._dataset": (
        Row("pyarrow.dataset", "Dataset.to_table", finders.arrow_dataset, threads=True, groups=True),
        Row("pyarrow.dataset", "Dataset.head take", finders.arrow_dataset, "", threads=True),  # decode more
        Row(
            "pyarrow.dataset",
            "Dataset.to_batches",
            finders.arrow_dataset,
            each=True,
            threads=True,
            groups=True,
        ),
        Row("pyarrow.dataset", "Scanner.to_table head take", threads=True),
        Row("pyarrow.dataset", "Scanner.to_batches", each=True, threads=True),
    ),
    "datasets.arrow_dataset": (
        # The pages of its mapped Arrow files are read in there, by page faults.
        Row("datasets", "Dataset._getitem", finders.hf_dataset, "", skip=finders.hf_is_transformed),
        Row("datasets", "query_table", finders.hf_table, ""),
    ),
    "datasets.formatting.formatting": (
        Row("datasets", "PythonArrowExtractor.extract_row extract_batch", size=""),
        Row("datasets", "PythonFeaturesDecoder.decode_batch", size=""),
    ),
    "pandas.io.parsers.readers": (
        *_pandas("read_csv read_table read_fwf", "filepath_or_buffer"),
        Row("pandas", "TextFileReader.read", "0.handles.handle", threads=True),
    ),
    "pandas.io.parquet": _pandas("read_parquet", "path"),
    "pandas.io.feather_format": _pandas("read_feather", "path"),
    "pandas.io.orc": _pandas("read_orc", "path"),
    "pandas.io.pickle": _pandas("read_pickle", "filepath_or_buffer"),
    "pandas.io.json._json": _pandas("read_json", "path_or_buf"),
    "pandas.io.pytables": _pandas("read_hdf", "path_or_buf"),
    "pandas.io.excel._base": _pandas("read_excel", "io"),
    "fsspec.asyn": (
        # What file systems of fsspec wait for: s3fs, gcsfs, http and others; a call for each object.
        Row("fsspec", "sync", finders.fsspec_object, threads=True),
    ),
    "obstore": (
        Row("obstore", "get", finders.obstore_object, made=True),
        Row("obstore", "get_range get_ranges", finders.obstore_object, "length", threads=True),
        Row("obstore", "_obstore.GetResult.bytes buffer", "made 0", "length", threads=True),
    ),
}


def parse(text: str) -> tuple[str, Row]:
    """Return the module and the row that a line of the settings describes: five fields between tabs.

    Module, call, file, size, and words out of ``threads`` and ``each``.
    """
    module, call, file, size, words = text.split("\t")
    library, chosen = module.partition(".")[0], words.split()
    return module, Row(library, call, file, size, threads="threads" in chosen, each="each" in chosen)
