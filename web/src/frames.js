// Calls `paint` once in the next frame, however often it is asked to, if the canvas is still on the page.
export function oncePerFrame(canvas, paint) {
  let pending = false;
  return () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      if (canvas.isConnected) paint();
    });
  };
}
