"""Drawing without a screen: which OpenGL backend works here."""
