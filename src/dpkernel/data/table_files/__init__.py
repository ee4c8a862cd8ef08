"""Tables in files: CSV, Parquet, Arrow and NPZ, read block by block under declared bounds."""

from dpkernel.data.table_files.inspection import Inspection, inspect_table
from dpkernel.data.table_files.loading import LoadedTable, read_table
from dpkernel.data.table_files.readers import FORMATS, TableFile, is_text_file, open_table
from dpkernel.data.table_files.schema import ColumnRule, Schema, read_schema
from dpkernel.data.table_files.spelling import Spelling
from dpkernel.data.table_files.spool import EncodedTable, encode_table

__all__ = [
    "FORMATS",
    "ColumnRule",
    "EncodedTable",
    "Inspection",
    "LoadedTable",
    "Schema",
    "Spelling",
    "TableFile",
    "encode_table",
    "inspect_table",
    "is_text_file",
    "open_table",
    "read_schema",
    "read_table",
]
