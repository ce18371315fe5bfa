"""The world is told by the variable FAKE_MPI, as RANK/SIZE; without it, MPI was not launched."""

from __future__ import annotations

import os

_RANK, _SIZE = map(int, os.environ.get("FAKE_MPI", "0/1").split("/"))


class _Request:
    def Test(self) -> bool:
        return True


class _World:
    def Get_rank(self) -> int:
        return _RANK

    def Get_size(self) -> int:
        return _SIZE

    def Ibarrier(self) -> _Request:
        return _Request()

    def Abort(self, errorcode: int = 0) -> None:
        raise SystemExit(f"MPI_Abort({errorcode})")


COMM_WORLD = _World()


def Get_library_version() -> str:
    return "Fake MPI v1.0, for tests"
