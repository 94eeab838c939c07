"""A program: draw one small frame with MuJoCo and print who drew it. It runs in a child process, because a backend that
does not work can end its process, and because MuJoCo chooses its backend once, at import."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

SIZE = 64
_SCENE = """
<mujoco>
  <worldbody>
    <light pos="0 0 3"/>
    <camera name="eye" pos="0 -2 1" xyaxes="1 0 0 0 1 2"/>
    <geom type="plane" size="2 2 .1" rgba=".2 .4 .8 1"/>
    <geom type="sphere" size=".4" pos="0 0 .4" rgba=".9 .3 .1 1"/>
  </worldbody>
</mujoco>
"""


def drawn() -> tuple[np.ndarray, str]:
    """The frame, and the name that OpenGL gives to its renderer."""
    mujoco: Any = importlib.import_module("mujoco")
    model = mujoco.MjModel.from_xml_string(_SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer = mujoco.Renderer(model, SIZE, SIZE)
    try:
        renderer.update_scene(data, camera="eye")
        frame = renderer.render().copy()
        return frame, _renderer_name()
    finally:
        renderer.close()


def _renderer_name() -> str:
    gl: Any = importlib.import_module("OpenGL.GL")
    name = gl.glGetString(gl.GL_RENDERER)
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def main() -> None:
    frame, name = drawn()
    if len(np.unique(frame.reshape(-1, 3), axis=0)) < 2:
        sys.exit("the frame is empty")
    print(name)


if __name__ == "__main__":
    main()
