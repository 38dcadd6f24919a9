// Pictures for a message. Large ones are scaled down before they are sent and kept: models do it anyway, and providers refuse them.

/** The longest side in pixels. */
const SIDE_MAX = 2048;
/** The largest file that is sent as it is. Providers refuse 5 MB of base64. */
const BYTES_MAX = 3 << 20;
const QUALITY = 0.9;

export const dataUrl = (file: Blob) => new Promise<string>((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result as string);
  reader.onerror = () => reject(reader.error ?? new Error(file.type));
  reader.readAsDataURL(file);
});

/** The picture, as it is or scaled down; of an animation its first frame then. Null if the browser cannot read it. */
export async function scaled(file: Blob): Promise<Blob | null> {
  // The orientation of a photo is applied.
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (!bitmap) return null;
  try {
    const scale = Math.min(1, SIDE_MAX / Math.max(bitmap.width, bitmap.height));
    if (scale === 1 && file.size <= BYTES_MAX) return file;
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    const context = canvas.getContext("2d");
    if (!context) return null;
    context.imageSmoothingQuality = "high";
    context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const write = (type: string) => new Promise<Blob | null>(resolve => canvas.toBlob(resolve, type, QUALITY));
    const png = file.type === "image/jpeg" ? null : await write("image/png");
    // JPEG has no transparency: what is transparent is black there.
    return png && png.size <= BYTES_MAX ? png : await write("image/jpeg");
  } finally {
    bitmap.close();
  }
}
