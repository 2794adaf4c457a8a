"""The errors of versions: what is stored and what this program reads are of different ones.

``schema`` is what the state, or the record, is called where it is stored; ``version`` the one that was found there. Nothing was
written.
"""

from __future__ import annotations

from leasekeeper.errors import FixIt

__all__ = ["MigrationFailed", "SchemaTooNew", "SchemaUnknown"]


class SchemaTooNew(FixIt):
    """What is stored is of a newer version than this program can read: deploy the newer program.

    ``reads`` is the newest version that this program reads. ``where`` names the record where it is leasekeeper's own format that
    is newer, and empty where it is a state's version.
    """

    def __init__(
        self, message: str | None = None, *, schema: str = "", version: int = 0, reads: int = 0, where: str = ""
    ) -> None:
        told = (
            f"{schema} is stored in version {version}, and this program reads up to {reads}: deploy the newer program"
        )
        if where:
            told = f"{where}: {_newer(schema, version, reads)}: deploy the newer one here"
        super().__init__(message or (told if schema else None))
        self.schema = schema
        self.version = version
        self.reads = reads
        self.where = where

    @property
    def why(self) -> str:
        """The reason alone, as `CorruptState` has one."""
        return _newer(self.schema, self.version, self.reads)


def _newer(schema: str, version: int, reads: int) -> str:
    return f"a newer leasekeeper wrote it, in {schema} format {version}, and this one reads up to {reads}"


class SchemaUnknown(FixIt):
    """What is stored is of an older version than this program still reads: deploy one that does, or add the migrations.

    ``oldest`` is the oldest version that this program still reads.
    """

    def __init__(self, message: str | None = None, *, schema: str = "", version: int = 0, oldest: int = 0) -> None:
        told = f"{schema} is stored in version {version}, and this program reads from {oldest} on: add the migrations again"
        super().__init__(message or (told if schema else None))
        self.schema = schema
        self.version = version
        self.oldest = oldest


class MigrationFailed(FixIt):
    """A migration does not work on what is stored: mend it; what is stored was not touched.

    ``to`` is the version that was to come of it, ``function`` the migration's full name, and ``why`` says what happened; an
    exception of the function's own is the ``__cause__`` as well.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        schema: str = "",
        version: int = 0,
        to: int = 0,
        function: str = "",
        why: str = "",
    ) -> None:
        told = f"{function}, which takes {schema} from version {version} to {to}, failed: {why}: mend it; nothing was written"
        super().__init__(message or (told if schema else None))
        self.schema = schema
        self.version = version
        self.to = to
        self.function = function
        self.why = why
