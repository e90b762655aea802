"""Conversion of libsvm text to a dataset: ``streamcd convert`` under another name."""

from streamcd.cli.commands import convert

if __name__ == "__main__":
    convert(prog_name="libsvm2parquet")
