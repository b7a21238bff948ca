// Text that is too faint against what is behind it (WCAG 2, level AA), as a list of complaints. Run in the page.
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return { parts: [red, green, blue], alpha };
  };
  const luminance = (parts) => {
    const [red, green, blue] = parts.map((part) => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour.alpha === 255) return colour.parts;
    }
    return [255, 255, 255];
  };
  const complaints = [];
  for (const element of document.querySelectorAll("body *")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    const style = getComputedStyle(element);
    const isSeen = element.checkVisibility() && !element.closest("noscript, [aria-hidden]");
    if (!hasText || !isSeen || element.closest(":disabled")) continue;
    const [one, other] = [luminance(rgb(style.color).parts), luminance(behind(element))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const size = parseFloat(style.fontSize);
    if (contrast < (size >= 24 || (size >= 18.6 && style.fontWeight >= 700) ? 3 : 4.5)) {
      complaints.push(`${contrast.toFixed(2)} ${element.tagName}.${element.className} ${element.textContent.trim().slice(0, 30)}`);
    }
  }
  return complaints;
}
