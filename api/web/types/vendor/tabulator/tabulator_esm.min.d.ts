export * from "tabulator-tables";
