"""libsvm text to a dataset: the same as ``streamcd convert``, under a name that says what it does."""

from streamcd.cli.commands import convert

if __name__ == "__main__":
    convert(prog_name="libsvm2parquet")
