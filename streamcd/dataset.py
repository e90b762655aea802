"""A dataset, open for reading and for verification."""

from __future__ import annotations

import os

from .progress import Listener
from .row_layout import RowTable


class Dataset(RowTable):
    def verify(self, listener: Listener | None = None, *, workers: int = 1) -> list[str]:
        """Check every checksum and invariant, those of the column layout included where there is one.

        Parameters
        ----------
        listener : Listener, optional
        workers : int
            Processes that share the work.

        Returns
        -------
        list of str
            What is wrong, a line each, naming the file; empty where all is well.
        """
        from .columnchecks import verify

        return verify(self, listener, workers=workers)


def open_dataset(path: str | os.PathLike[str], *, check_files: bool = True) -> Dataset:
    """Open a dataset directory.

    Parameters
    ----------
    path : path
    check_files : bool
        Check that every file is there with its recorded size (one look at each file's entry, no reading).

    Raises
    ------
    DatasetError
        Where it is not a dataset, or a file is missing, truncated or damaged; names the file.
    """
    return Dataset.open(path, check_files=check_files)
